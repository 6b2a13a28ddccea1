"""Phi-3 and its heirs: Phi-3.5-mini, Phi-3-medium, Phi-4, Phi-4-mini. Llama's layers with fused matrices.

Sources: the configuration and modelling files of transformers (models/phi3); for GGUF llama.cpp's converter, which
leaves the matrices as they are and writes LongRoPE's factors as two tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.families.base import Family, Gguf
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYER, GGUF_LAYOUT
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of
from headstart.models.families.rope import longrope_if_any, rope_of, rotated_dim


def _phi3(fields: Fields) -> ModelConfig:
    layer = LayerConfig(fields.optional_integer("sliding_window", maximum=MAX_POSITIONS))
    return base_of(fields, rope=longrope_of(fields), layer=layer)


def longrope_of(fields: Fields, default_theta: float = 10_000.0) -> RopeConfig:
    """A rotation that may be LongRoPE's."""
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    dim = rotated_dim(fields, head_dim, 1.0)
    return longrope_if_any(fields, dim) or rope_of(fields, dim, default_theta, whole_heads=False)


_SPLIT = ("q", "k", "v", "gate", "up")


def _fused(layer: dict[str, str], qkv: str, up: str) -> dict[str, str]:
    return {role: name for role, name in layer.items() if role not in _SPLIT} | {"qkv": qkv, "up": up}


GGUF_LONGROPE: dict[str, Any] = {
    "rope_factors": "rope_factors_short.weight",
    "ignored": (*GGUF_LAYOUT.ignored, r"rope_factors_long\.weight"),
}
"""What a layout with its factors has."""

FAMILIES = (
    Family(
        "phi3",
        _phi3,
        replace(HF_LAYOUT, layer=_fused(HF_LAYER, "layers.{i}.self_attn.qkv_proj", "layers.{i}.mlp.gate_up_proj")),
        Gguf(
            "phi3",
            replace(GGUF_LAYOUT, layer=_fused(GGUF_LAYER, "blk.{i}.attn_qkv", "blk.{i}.ffn_up"), **GGUF_LONGROPE),
        ),
    ),
)
