"""Tiny GGUF files with multi-token modules, inside and in files of their own, of every family that has them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf_hybrids import write_hybrid
from gguf_latent import write_latent
from gguf_models import write_gguf
from multi_token_models import Reference, write_modules

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
}
SAID: dict[str, dict[str, object]] = {
    "cohere2_moe": {"rms_norm_eps": 1e-5, "logit_scale": 1.0},
    "deepseek_v3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "exaone_moe": {"n_group": 1, "topk_group": 1},
    "glm4_moe": {"n_group": 1, "topk_group": 1},
    "nemotron_h": {"n_group": 1, "topk_group": 1, "time_step_min": 1e-9},
    "qwen3_next": {"mlp_only_layers": []},
}
"""What GGUF files can say."""


def written(
    family: str, directory: Path, count: int = 1, without: str = "", to: Path | None = None, **sizes: object
) -> tuple[Reference, Path]:
    """A tiny checkpoint, and the same as a GGUF file, whose modules lack a part by their names there."""
    reference = write_modules(family, directory, count, **(SAID.get(family, {}) | sizes))
    around = [
        {THEIRS[part]: tensor for part, tensor in parts.items() if THEIRS[part] != without} for parts in reference.parts
    ]
    return reference, WRITERS[family](reference.model, to or directory / "tiny.gguf", modules=around)


def alone(path: Path, to: Path, modules: bool = True) -> Path:
    """A GGUF file with the modules of another and what they share with its model, or with all but them, though its
    description counts them."""
    reader = gguf.GGUFReader(path)
    to.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    last = max(int(tensor.name.split(".")[1]) for tensor in reader.tensors if tensor.name.startswith("blk."))
    for tensor in reader.tensors:
        of_layer = tensor.name.startswith("blk.")
        if not of_layer or tensor.name.startswith(f"blk.{last}.") == modules:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
