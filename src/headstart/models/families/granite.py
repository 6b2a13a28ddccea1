"""Granite 2 to 4: Llama's layers with four factors, and Mamba-2 in some of them (Granite 4 H).

Sources: the configuration and modelling files of transformers (models/granite, granite_swa, granitemoehybrid); for GGUF
llama.cpp's converter, which calls both "granite" and interleaves the rotary halves of q and k.

A layer adds its output times a factor. As an RMS norm does not see the scale of its input, the same is computed with
the whole stream divided by that factor: the embedding's factor and the norms' epsilon change, no layer does. Taps show
it multiplied again, so that heads of others' making read what they were trained on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from torch import Tensor

from headstart.models.config import EmbeddingConfig, ExpertsConfig, FoldedConfig, LayerConfig, Mixer, ModelConfig
from headstart.models.families.base import Family, Parts
from headstart.models.families.fields import Fields
from headstart.models.families.llama import (
    GGUF_INTERLEAVED,
    HF_LAYER,
    HF_LAYOUT,
    base_from_gguf,
    base_from_hf,
    biased,
    mlp_of,
    windows_from_hf,
)
from headstart.models.families.mamba2 import MAMBA2_LAYER, MAMBA2_WHOLE, mamba2_from_hf


def _scaled(
    config: ModelConfig, embedding: float, residual: float, attention: float | None, logits: float
) -> ModelConfig:
    config = replace(
        config,
        embedding=EmbeddingConfig(embedding),
        attention=replace(config.attention, scale=attention),
        folded=FoldedConfig(logits),
    )
    return with_factor_of_layers(config, residual)


def with_factor_of_layers(config: ModelConfig, factor: float) -> ModelConfig:
    """A layer's output times a factor is the stream divided by it."""
    return replace(
        config,
        embedding=replace(config.embedding, scale=config.embedding.scale / factor),
        residual=replace(config.residual, tap_scale=factor),
        norms=replace(config.norms, eps=config.norms.eps / factor**2),
    )


def scaled_from_hf(fields: Fields, family: str, **parts: Unpack[Parts]) -> ModelConfig:
    """Llama's layers with the four factors."""
    return _scaled(
        base_from_hf(fields, family, tied=False, attention=biased(fields), **parts),
        embedding=fields.number("embedding_multiplier", 1.0),
        residual=fields.number("residual_multiplier", 1.0),
        attention=fields.number("attention_multiplier", 1.0),
        logits=fields.number("logits_scaling", 1.0),
    )


def _granite(fields: Fields) -> ModelConfig:
    return scaled_from_hf(fields, "granite", mlp=mlp_of(fields))


def _granite_swa(fields: Fields) -> ModelConfig:
    config = scaled_from_hf(fields, "granite_swa", mlp=mlp_of(fields))
    sliding = [i % 4 != 0 for i in range(config.num_layers)]
    windows = windows_from_hf(fields, config.num_layers, fields.integer("sliding_window", 128), sliding)
    thetas = fields.get("layer_rope_theta")
    thetas = [config.ropes[0].theta] * config.num_layers if thetas is None else thetas
    if not isinstance(thetas, list) or len(thetas) != config.num_layers or not all(_is_theta(each) for each in thetas):
        raise fields.bad("layer_rope_theta", thetas, f"{config.num_layers} numbers, 0 for a layer without positions")
    bases = sorted({theta for theta in thetas if theta})
    ropes = [bases.index(theta) if theta else None for theta in thetas]
    return replace(
        config,
        layers=tuple(LayerConfig(*each) for each in zip(windows, ropes, strict=True)),
        ropes=tuple(replace(config.ropes[0], theta=float(base)) for base in bases),
        attention=replace(config.attention, sinks=True),
    )


def _is_theta(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30


_MIXERS: dict[str, Mixer] = {
    "attention": "attention",
    "full_attention": "attention",
    "mamba": "mamba2",
    "linear_attention": "mamba2",
}


def granite4(fields: Fields) -> ModelConfig:
    """Dense or a mixture, with Mamba-2 in some layers or without."""
    config = scaled_from_hf(fields, "granite4")
    kinds = fields.get("layer_types")
    # Released files say "attention" and "mamba", transformers writes "full_attention" and "linear_attention".
    kinds = ["mamba"] * config.num_layers if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != config.num_layers:
        raise fields.bad("layer_types", kinds, f"{config.num_layers} entries")
    if not all(isinstance(kind, str) and kind in _MIXERS for kind in kinds):
        raise fields.bad("layer_types", kinds, f"entries each of {', '.join(_MIXERS)}")
    rope = 0 if fields.text("position_embedding_type", "nope") == "rope" else None
    mixers = [_MIXERS[kind] for kind in kinds]
    layers = tuple(LayerConfig(rope=rope if each == "attention" else None, mixer=each) for each in mixers)
    if "mamba2" in mixers:
        config = replace(config, mamba2=mamba2_from_hf(fields))
    dense, count = fields.integer("shared_intermediate_size", 1024), fields.integer("num_local_experts", 8, minimum=0)
    if count == 0:
        return replace(config, mlp_size=dense, layers=layers)
    used = fields.integer("num_experts_per_tok", min(8, count), maximum=count)
    return replace(
        config,
        family="granite4_moe",
        layers=tuple(replace(layer, channel="experts") for layer in layers),
        experts=ExpertsConfig(count, used, config.mlp_size, shared_size=dense, normalised=True),
    )


def _granite_gguf(fields: Fields) -> ModelConfig:
    return scaled_from_gguf(fields, "granite")


def scaled_from_gguf(fields: Fields, family: str, experts: bool = False) -> ModelConfig:
    """Llama's layers with the four factors; ``experts``: there may be some."""
    key_value_heads = fields.get("attention.head_count_kv")
    if isinstance(key_value_heads, list) and len(set(key_value_heads)) == 1:
        # Granite 4's files say it layer by layer.
        one_for_all = {fields.prefix + "attention.head_count_kv": key_value_heads[0]}
        fields = Fields({**fields.entries, **one_for_all}, fields.source, fields.prefix)
    config = base_from_gguf(fields, family, experts=experts)
    rotates = fields.flag("rope.scaling.finetuned", True)
    return _scaled(
        replace(config, layers=(LayerConfig(rope=0 if rotates else None),) * config.num_layers),
        embedding=fields.number("embedding_scale", 1.0),
        residual=fields.number("residual_scale", 1.0),
        attention=fields.optional_number("attention.scale"),
        logits=fields.number("logit_scale", 1.0),
    )


def divided(weight: Tensor, config: ModelConfig) -> Tensor:
    """The final norm's weight, so that no decoder divides logits."""
    return weight / config.folded.logit_divisor


_HF_LAYOUT = replace(HF_LAYOUT, convert={"final_norm": divided})
_GGUF_LAYOUT = replace(GGUF_INTERLEAVED, convert={**GGUF_INTERLEAVED.convert, "final_norm": divided})
GRANITE_EXPERTS = {
    "router": "layers.{i}.block_sparse_moe.router.layer",
    "expert_up": "layers.{i}.block_sparse_moe.input_linear",
    "expert_down": "layers.{i}.block_sparse_moe.output_linear",
    "shared_up": "layers.{i}.shared_mlp.input_linear",
    "shared_down": "layers.{i}.shared_mlp.output_linear",
}
_FUSED_MLP = {
    **{role: name for role, name in HF_LAYER.items() if role != "gate"},
    "up": "layers.{i}.shared_mlp.input_linear",
    "down": "layers.{i}.shared_mlp.output_linear",
}
GRANITE4_LAYOUT = replace(_HF_LAYOUT, layer=_FUSED_MLP | MAMBA2_LAYER, whole=MAMBA2_WHOLE)
GRANITE4_MOE_LAYOUT = replace(_HF_LAYOUT, layer=HF_LAYER | GRANITE_EXPERTS | MAMBA2_LAYER, whole=MAMBA2_WHOLE)

FAMILIES = (
    Family("granite", "granite", "granite", _granite, _granite_gguf, _HF_LAYOUT, _GGUF_LAYOUT),
    Family(
        "granite_swa",
        "granite_swa",
        "",
        _granite_swa,
        None,
        replace(
            _HF_LAYOUT,
            layer=HF_LAYER | {"sinks": "layers.{i}.self_attn.sinks"},
            whole=frozenset({"sinks"}),
        ),
        None,
    ),
    Family(
        "granite4",
        "granitemoehybrid",
        "granite",
        granite4,
        _granite_gguf,
        GRANITE4_LAYOUT,
        _GGUF_LAYOUT,
    ),
    Family(
        "granite4_moe",
        "",
        "",
        granite4,
        None,
        GRANITE4_MOE_LAYOUT,
        None,
        "experts",
    ),
)
