"""CTranslate2 in int8, converted from the same file: plain decoding, the only kind it has."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ctranslate2
from protocol import Decode, OnToken, serve


def load(options: argparse.Namespace) -> dict[str, Decode]:
    directory = options.work / "ctranslate2-int8"
    if not (directory / "model.bin").exists():
        convert(options.model, options.work, directory)
    generator = ctranslate2.Generator(
        str(directory), device="cpu", compute_type="int8", intra_threads=options.threads, inter_threads=1
    )
    spelling: list[str] = json.loads((directory / "vocabulary.json").read_text(encoding="utf-8"))

    def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
        def on_step(step: ctranslate2.GenerationStepResult) -> bool:
            on_token()
            return False

        (result,) = generator.generate_batch(
            [[spelling[token] for token in prompt]],
            min_length=count,
            max_length=count,
            include_prompt_in_result=False,
            callback=on_step,
        )
        return list(result.sequences_ids[0])

    return {"plain": decode}


def convert(model: Path, work: Path, directory: Path) -> None:
    """From a GGUF file or a Hugging Face directory to CTranslate2's format, weights in int8."""
    import torch
    from ctranslate2.converters import TransformersConverter
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = model
    if model.suffix == ".gguf":
        source = work / "huggingface"
        where = {"gguf_file": model.name}
        config = GgufConfig(dequantize=True)
        loaded = AutoModelForCausalLM.from_pretrained(
            str(model.parent), dtype=torch.float32, quantization_config=config, **where
        )
        # Its weights are float32 by now, but it still calls itself quantised, which cannot be saved.
        loaded.hf_quantizer = None
        loaded.config.quantization_config = None
        loaded.save_pretrained(source)
        AutoTokenizer.from_pretrained(str(model.parent), **where).save_pretrained(source)
    TransformersConverter(str(source)).convert(str(directory), quantization="int8", force=True)


if __name__ == "__main__":
    serve(load, ["ctranslate2"], "converted from the GGUF to int8, 8-bit activations")
