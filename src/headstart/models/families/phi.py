"""Phi-3 and its heirs: Phi-3.5-mini, Phi-3-medium, Phi-4, Phi-4-mini. Llama's layers with fused matrices.

Sources: the configuration and modelling files of transformers (models/phi3); for GGUF llama.cpp's converter, which
leaves the matrices as they are and writes LongRoPE's factors as two tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.families.base import Family
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf_layers import window_from_gguf
from headstart.models.families.llama import GGUF_LAYER, GGUF_LAYOUT, HF_LAYER, HF_LAYOUT, base_from_gguf, base_from_hf
from headstart.models.families.rope import longrope, longrope_from_hf, rope_from_gguf, rope_from_hf, rotated_share


def _phi3(fields: Fields) -> ModelConfig:
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    return _with_window(base_from_hf(fields, "phi3", tied=False, rope=longrope_of(fields)), window)


def longrope_of(fields: Fields, default_theta: float = 10_000.0) -> RopeConfig:
    """A rotation that may be LongRoPE's."""
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    dim = int(head_dim * rotated_share(fields, 1.0))
    return longrope_from_hf(fields, dim) or rope_from_hf(fields, dim, default_theta, whole_heads=False)


def _phi3_gguf(fields: Fields) -> ModelConfig:
    return _with_window(base_from_gguf(fields, "phi3", rope=longrope_from_gguf(fields)), window_from_gguf(fields))


def longrope_from_gguf(fields: Fields) -> RopeConfig:
    """A rotation that may be LongRoPE's; its short factors are a tensor, see ``DecoderWeights.rope_factors``."""
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    rope = rope_from_gguf(fields, fields.integer("rope.dimension_count", hidden // heads))
    trained = fields.optional_integer("rope.scaling.original_context_length", maximum=MAX_POSITIONS)
    if trained is None:
        return rope
    return replace(rope, scaling=longrope(trained, fields.number("rope.scaling.attn_factor", 1.0)))


def _with_window(config: ModelConfig, window: int | None) -> ModelConfig:
    return replace(config, layers=(LayerConfig(window),) * config.num_layers)


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
        "phi3",
        "phi3",
        _phi3,
        _phi3_gguf,
        replace(HF_LAYOUT, layer=_fused(HF_LAYER, "layers.{i}.self_attn.qkv_proj", "layers.{i}.mlp.gate_up_proj")),
        replace(
            GGUF_LAYOUT,
            layer=_fused(GGUF_LAYER, "blk.{i}.attn_qkv", "blk.{i}.ffn_up"),
            **GGUF_LONGROPE,
        ),
    ),
)
