"""OpenVINO GenAI on the GGUF: plain and prompt lookup."""

from __future__ import annotations

import argparse

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import Decode, OnToken, serve

LOOKUP_TOKENS = 4


def load(options: argparse.Namespace) -> dict[str, Decode]:
    properties = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}

    def mode(lookup: int) -> Decode:
        pipeline = genai.LLMPipeline(
            str(options.model), "CPU", **({"prompt_lookup": True} if lookup else {}), **properties
        )

        def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
            config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
            if lookup:
                config.num_assistant_tokens = lookup
                config.max_ngram_size = 3
            ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            inputs = genai.TokenizedInputs(ids, ov.Tensor(np.ones((1, len(prompt)), dtype=np.int64)))
            return list(pipeline.generate(inputs, config, FirstToken(on_token)).tokens[0])

        return decode

    return {"plain": mode(0), f"prompt lookup {LOOKUP_TOKENS}": mode(LOOKUP_TOKENS)}


class FirstToken(genai.StreamerBase):
    """Tells when the first token is out."""

    def __init__(self, on_token: OnToken) -> None:
        super().__init__()
        self._on_token = on_token

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        self._on_token()
        return genai.StreamingStatus.RUNNING

    def end(self) -> None: ...


if __name__ == "__main__":
    serve(load, ["openvino-genai", "openvino"], "the GGUF as OpenVINO reads it")
