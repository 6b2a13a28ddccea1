"""Granite 2 to 4: Llama's layers with four factors, and Mamba-2 in some of them (Granite 4 H).

Sources: the configuration and modelling files of transformers (models/granite, granite_swa, granitemoehybrid); for GGUF
llama.cpp's converter, which calls both "granite" and interleaves the rotary halves of q and k.

A layer adds its output times a factor. As an RMS norm does not see the scale of its input, the same is computed with
the whole stream divided by that factor: the embedding's factor and the norms' epsilon change, no layer does. Taps show
it multiplied again, so that heads of others' making read what they were trained on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.models.config import EmbeddingConfig, FoldedConfig, LayerConfig, Mixer, MlpConfig, ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_MAMBA2, by_layer, size_of_state_heads
from headstart.models.families.llama import (
    FULL,
    GATED,
    GGUF_INTERLEAVED,
    HF_LAYER,
    HF_LAYOUT,
    base_of,
    biased,
    mlp_of,
    windows_of,
)
from headstart.models.families.mamba2 import MAMBA2_LAYER, mamba2_of


def scaled_of(fields: Fields, layer: LayerConfig = FULL, mlp: MlpConfig = GATED) -> ModelConfig:
    """Llama's layers with the four factors."""
    # GGUF files leave out the usual scale.
    scale = fields.optional_number("attention_multiplier") or (None if fields.of_gguf else 1.0)
    config = base_of(
        fields,
        layer=layer,
        attention=replace(biased(fields), scale=scale),
        mlp=mlp,
        embedding=EmbeddingConfig(fields.number("embedding_multiplier", 1.0)),
        folded=FoldedConfig(fields.number("logits_scaling", 1.0)),
    )
    return with_factor_of_layers(config, fields.number("residual_multiplier", 1.0))


def with_factor_of_layers(config: ModelConfig, factor: float) -> ModelConfig:
    """A layer's output times a factor is the stream divided by it."""
    return replace(
        config,
        embedding=replace(config.embedding, scale=config.embedding.scale / factor),
        residual=replace(config.residual, tap_scale=factor),
        norms=replace(config.norms, eps=config.norms.eps / factor**2),
    )


def _granite(fields: Fields) -> ModelConfig:
    return scaled_of(fields, layer=_attention(fields, "rope"), mlp=mlp_of(fields))


def _attention(fields: Fields, default: str) -> LayerConfig:
    return LayerConfig(rope=0 if fields.text("position_embedding_type", default) == "rope" else None)


def _granite_swa(fields: Fields) -> ModelConfig:
    config = scaled_of(fields, mlp=mlp_of(fields))
    sliding = [i % 4 != 0 for i in range(config.num_layers)]
    windows = windows_of(fields, config.num_layers, fields.integer("sliding_window", 128), sliding)
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


def _granite4(fields: Fields) -> ModelConfig:
    """Dense or a mixture, with Mamba-2 in some layers or without."""
    config = scaled_of(fields)
    # Released files say "attention" and "mamba", transformers writes "full_attention" and "linear_attention".
    kinds = fields.kinds("layer_types", config.num_layers, _MIXERS) or ["mamba"] * config.num_layers
    mixers, attention = [_MIXERS[kind] for kind in kinds], _attention(fields, "nope")
    layers = tuple(attention if each == "attention" else LayerConfig(rope=None, mixer=each) for each in mixers)
    if "mamba2" in mixers:
        config = replace(config, mamba2=mamba2_of(fields))
    count = fields.integer("num_local_experts", 8, minimum=0)
    dense = fields.integer("shared_intermediate_size", 1024, minimum=0 if count else 1)
    if count == 0:
        return replace(config, mlp_size=dense, layers=layers)
    used = fields.integer("num_experts_per_tok", min(8, count), maximum=count)
    return replace(
        config,
        family="granite4_moe",
        layers=tuple(replace(layer, channel="experts") for layer in layers),
        experts=ExpertsConfig(count, used, config.mlp_size, shared_size=dense, normalised=True),
    )


def divided(weight: Tensor, config: ModelConfig) -> Tensor:
    """The final norm's weight, so that no decoder divides logits."""
    return weight / config.folded.logit_divisor


GGUF_NAMES = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}


def gguf_entries(fields: Fields) -> dict[str, Any]:
    """Whether there is a rotation; and what Granite 4's files say of layers one by one."""
    turns = fields.flag("rope.scaling.finetuned", True)
    heads, _ = by_layer(fields, "num_key_value_heads")
    return {"position_embedding_type": "rope" if turns else "nope", **heads}


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
_GRANITE4_LAYOUT = replace(_HF_LAYOUT, layer=_FUSED_MLP | MAMBA2_LAYER)
_GRANITE4_MOE_LAYOUT = replace(_HF_LAYOUT, layer=HF_LAYER | GRANITE_EXPERTS | MAMBA2_LAYER)


def _hybrid_entries(fields: Fields) -> dict[str, Any]:
    """Layers without heads of keys and values have Mamba-2; a dense model's size may stand for the shared expert's."""
    _, attending = by_layer(fields, "num_key_value_heads")
    shared = fields.integer("shared_intermediate_size", 0, minimum=0)
    if not shared and not fields.integer("num_local_experts", minimum=0):
        shared = fields.integer("intermediate_size")
    return {
        **gguf_entries(fields),
        "layer_types": ["attention" if each else "mamba" for each in attending],
        "shared_intermediate_size": shared,
        "intermediate_size": fields.integer("intermediate_size", shared, minimum=0) or shared,
        "mamba_d_head": size_of_state_heads(fields),
    }


_HYBRID = Gguf(
    "granitehybrid",
    replace(GGUF_MAMBA2, convert={**GGUF_MAMBA2.convert, **_GGUF_LAYOUT.convert}),
    GGUF_NAMES,
    {"num_local_experts": 0},
    _hybrid_entries,
)

FAMILIES = (
    Family("granite", _granite, _HF_LAYOUT, Gguf("granite", _GGUF_LAYOUT, GGUF_NAMES, computed=gguf_entries)),
    Family(
        "granite_swa",
        _granite_swa,
        replace(_HF_LAYOUT, layer=HF_LAYER | {"sinks": "layers.{i}.self_attn.sinks"}, whole=WHOLE | {"sinks"}),
    ),
    Family("granite4", _granite4, _GRANITE4_LAYOUT, _HYBRID, described_as="granitemoehybrid"),
    Family("granite4_moe", _granite4, _GRANITE4_MOE_LAYOUT, _HYBRID, "experts", described_as=""),
)
