"""llama.cpp through llama-cpp-python, the GGUF as it is: plain and prompt lookup."""

from __future__ import annotations

import argparse
from typing import Any

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import Decode, OnToken, serve

LOOKUP_TOKENS = 2
"""Few: on a CPU, each further row costs llama.cpp more."""


def opened(options: argparse.Namespace, **own: Any) -> Llama:
    """The model, with ``Llama``'s ``own`` settings of a mode."""
    return Llama(
        model_path=str(options.model),
        n_ctx=options.max_context,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        verbose=False,
        **own,
    )


def mode(options: argparse.Namespace, draft: LlamaPromptLookupDecoding | None) -> Decode:
    llama = opened(options, draft_model=draft)

    def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
        llama.reset()  # else the prompt would be taken from the request before
        tokens: list[int] = []
        for token in llama.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0):
            on_token()
            tokens.append(token)
            if len(tokens) == count:
                break
        return tokens

    return decode


def load(options: argparse.Namespace) -> dict[str, Decode]:
    return {
        "plain": mode(options, None),
        f"prompt lookup {LOOKUP_TOKENS}": mode(options, LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS)),
    }


if __name__ == "__main__":
    serve(load, ["llama-cpp-python"], "the GGUF as it is, AVX-512 where there is one")
