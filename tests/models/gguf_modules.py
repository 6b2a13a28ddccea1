"""Tiny GGUF files with multi-token modules, inside and in files of their own, of every family that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_deepseek_v4 import write_deepseek_v4
from gguf_hybrids import write_hybrid
from gguf_latent import write_latent
from gguf_models import write_gguf
from multi_token_models import Reference, write_modules
from numpy.typing import NDArray

THEIRS = {"embedding": "enorm", "hidden": "hnorm", "projection": "eh_proj", "final": "shared_head_norm"} | {
    "head": "shared_head_head"
}
WRITERS = {
    **dict.fromkeys(("glm4_moe", "exaone_moe", "mellum", "ernie4_5_moe", "hy_v3", "cohere2_moe"), write_gguf),
    **dict.fromkeys(("bailing_moe", "mimo_v2_flash", "step3p7"), write_gguf),
    **dict.fromkeys(
        ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "bailing_hybrid", "glm5_next"), write_latent
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h"), write_hybrid),
    "deepseek_v4": write_deepseek_v4,
}
SAID: dict[str, dict[str, object]] = {
    "cohere2_moe": {"rms_norm_eps": 1e-5, "logit_scale": 1.0},
    "deepseek_v3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}},
    "exaone_moe": {"n_group": 1, "topk_group": 1},
    "glm4_moe": {"n_group": 1, "topk_group": 1},
    "nemotron_h": {"n_group": 1, "topk_group": 1, "time_step_min": 1e-9},
    "qwen3_next": {"mlp_only_layers": []},
}
"""What GGUF files can say."""


def written(
    family: str, directory: Path, count: int = 1, without: str = "", to: Path | None = None, **sizes: object
) -> tuple[Reference, Path]:
    """A tiny checkpoint, and the same as a GGUF file, whose modules lack a part by their names there, and those that it
    has no names for."""
    reference = write_modules(family, directory, count, **(SAID.get(family, {}) | sizes))
    around = [
        {THEIRS[part]: tensor for part, tensor in parts.items() if THEIRS.get(part, without) != without}
        for parts in reference.parts
    ]
    return reference, WRITERS[family](reference.model, to or directory / "tiny.gguf", modules=around)


def alone(path: Path, to: Path, modules: bool = True) -> Path:
    """A GGUF file with the modules of another and what they share with its model, or with all but them, though its
    description counts them."""
    tensors = gguf.GGUFReader(path).tensors
    last = max(int(tensor.name.split(".")[1]) for tensor in tensors if tensor.name.startswith("blk."))
    kept = [
        (tensor.name, np.array(tensor.data), tensor.tensor_type)
        for tensor in tensors
        if not tensor.name.startswith("blk.") or tensor.name.startswith(f"blk.{last}.") == modules
    ]
    return _rewritten(path, to, kept)


def in_blocks(path: Path, to: Path, kind: str) -> Path:
    """A GGUF file with the matrices of another in blocks of 32 weights."""
    type_, plain = gguf.GGMLQuantizationType[kind], ("_inp.", "conv1d", "ssm_a")
    tensors = []
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(tensor.data)
        fits = values.ndim > 1 and values.shape[-1] % 32 == 0 and not any(part in tensor.name for part in plain)
        values, stored = (gguf.quants.quantize(values, type_), type_) if fits else (values, tensor.tensor_type)
        tensors.append((tensor.name, values, stored))
    return _rewritten(path, to, tensors)


def _rewritten(path: Path, to: Path, tensors: list[tuple[str, NDArray[Any], gguf.GGMLQuantizationType]]) -> Path:
    """The description of a GGUF file with other tensors."""
    reader = gguf.GGUFReader(path)
    to.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    for name, values, type_ in tensors:
        writer.add_tensor(name, values, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
