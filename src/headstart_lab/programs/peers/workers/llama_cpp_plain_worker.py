"""llama.cpp through llama-cpp-python, plain alone, and passes of some rows as where guesses are verified: one copy of
the weights."""

from __future__ import annotations

import argparse

from llama_cpp import Llama
from llama_cpp_worker import mode, opened
from protocol import Decode, OnToken, serve

ROWS = (2, 3, 4)
"""Of passes that all want their logits."""


def passes(llama: Llama, rows: int) -> Decode:
    """As many passes of ``rows`` rows as tokens are asked for, each after the prompt."""

    def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
        llama.reset()
        llama.eval(prompt)
        on_token()
        for _ in range(count):
            llama.n_tokens = len(prompt)  # what came behind is written over
            llama.eval(prompt[:rows])
        return prompt[:count]

    return decode


def load(options: argparse.Namespace) -> dict[str, Decode]:
    verifying = opened(options, logits_all=True)
    return {"plain": mode(options, None)} | {f"{rows} rows": passes(verifying, rows) for rows in ROWS}


if __name__ == "__main__":
    serve(load, ["llama-cpp-python"], "the GGUF as it is, AVX-512 where there is one")
