"""Random tiny checkpoints of Ling and Ring 2, which came with code of their own: what that computes is GLM-4.5's, with
norms of heads, under other names (inclusionAI/Ling-mini-2.0, modeling_bailing_moe_v2.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

KIND = "bailing_moe"
_NAMES = {
    "embed_tokens": "word_embeddings",
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
    "shared_head.norm": "final_layernorm",
}
_CALLED = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


def as_bailing(model: PreTrainedModel) -> PreTrainedModel:
    """A GLM-4.5 whose description says that it is a Ling."""
    model.config.model_type = KIND
    return model


def description(glm: dict[str, Any]) -> dict[str, Any]:
    """A ``config.json`` from that of GLM-4.5."""
    told = {_CALLED.get(key, key): value for key, value in glm.items() if key != "rope_parameters"}
    return (
        told
        | {"model_type": KIND, "score_function": "sigmoid", "use_qk_norm": True, "use_bias": False}
        | {
            "use_qkv_bias": False,
            "rope_theta": glm["rope_parameters"]["rope_theta"],
            "partial_rotary_factor": 0.5,
        }
    )


def rename(directory: Path) -> None:
    """Make a folder of a GLM-4.5 one of a Ling."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    renamed = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            renamed[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            for old, new in _NAMES.items():
                name = name.replace(old, new)
            renamed[name] = tensor
    save_file(renamed, path, metadata={"format": "pt"})
    told = description(json.loads((directory / "config.json").read_text()))
    (directory / "config.json").write_text(json.dumps(told))
