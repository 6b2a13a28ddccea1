"""LFM2 and LFM2-MoE (Liquid AI): gated short convolutions, and attention in some layers.

Sources: the configuration and modelling files of transformers (models/lfm2, lfm2_moe); for GGUF llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import ConvolutionConfig, ExpertsConfig, HeadNorms, LayerConfig, ModelConfig
from headstart.models.families import gguf_states
from headstart.models.families.base import Family
from headstart.models.families.experts import used_of, with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.llama import HF_LAYOUT, base_from_hf

_KINDS = ("full_attention", "conv")


def _base(fields: Fields, family: str, **changes: Any) -> ModelConfig:
    config = base_from_hf(
        fields,
        family,
        tied=fields.flag("tie_embedding", True),
        default_theta=1_000_000.0,
        eps="norm_eps",
        default_eps=1e-5,
        activation="silu",
        qk_norm=HeadNorms(),
        convolution=ConvolutionConfig(fields.integer("conv_L_cache", 3, minimum=2), fields.flag("conv_bias", False)),
        **changes,
    )
    kinds = fields.get("layer_types")
    if kinds is None:
        attending = fields.get("full_attn_idxs")
        known = list(range(config.num_layers)) if attending is None else attending
        if not isinstance(known, list):
            raise fields.bad("full_attn_idxs", attending, "a list of layers")
        kinds = ["full_attention" if index in known else "conv" for index in range(config.num_layers)]
    if not isinstance(kinds, list) or len(kinds) != config.num_layers or any(kind not in _KINDS for kind in kinds):
        raise fields.bad("layer_types", kinds, f"{config.num_layers} entries, each {' or '.join(_KINDS)}")
    return replace(config, layers=_layers([kind == "conv" for kind in kinds]))


def _layers(convolving: list[bool]) -> tuple[LayerConfig, ...]:
    return tuple(LayerConfig(rope=None, mixer="convolution") if each else LayerConfig() for each in convolving)


def _lfm2(fields: Fields) -> ModelConfig:
    size = fields.optional_integer("block_ff_dim") or fields.integer("intermediate_size", 12288)
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", 256)
        size = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
        size = -(-size // multiple) * multiple
    return replace(_base(fields.with_entries(intermediate_size=size), "lfm2"), mlp_size=size)


def _lfm2_moe(fields: Fields) -> ModelConfig:
    config = _base(fields, "lfm2_moe")
    count = fields.integer("num_experts", 32)
    experts = ExpertsConfig(
        count,
        used_of(fields, count, 4),
        fields.integer("moe_intermediate_size", 1792),
        score="sigmoid",
        correction=fields.flag("use_expert_bias", True),
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    dense = fields.integer("num_dense_layers", 2, minimum=0)
    return with_experts(config, experts, set(range(dense)))


_LAYER = {
    "attention_norm": "layers.{i}.operator_norm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "output": "layers.{i}.self_attn.out_proj",
    "q_norm": "layers.{i}.self_attn.q_layernorm",
    "k_norm": "layers.{i}.self_attn.k_layernorm",
    "convolution_input": "layers.{i}.conv.in_proj",
    "convolution_kernel": "layers.{i}.conv.conv",
    "convolution_output": "layers.{i}.conv.out_proj",
    "mlp_norm": "layers.{i}.ffn_norm",
    "gate": "layers.{i}.feed_forward.w1",
    "up": "layers.{i}.feed_forward.w3",
    "down": "layers.{i}.feed_forward.w2",
}
_EXPERTS = {
    "router": "layers.{i}.feed_forward.gate",
    "router_correction": "layers.{i}.feed_forward.expert_bias",
    "expert_gate": "layers.{i}.feed_forward.experts.{e}.w1",
    "expert_up": "layers.{i}.feed_forward.experts.{e}.w3",
    "expert_down": "layers.{i}.feed_forward.experts.{e}.w2",
}
_LAYOUT = replace(HF_LAYOUT, final_norm="embedding_norm", layer=_LAYER)
_MOE_LAYOUT = replace(_LAYOUT, layer=_LAYER | _EXPERTS, whole=frozenset({"router_correction"}))

FAMILIES = (
    Family("lfm2", "lfm2", "lfm2", _lfm2, gguf_states.lfm2, _LAYOUT, gguf_states.LFM2),
    Family(
        "lfm2_moe",
        "lfm2_moe",
        "lfm2moe",
        _lfm2_moe,
        gguf_states.lfm2_moe,
        _MOE_LAYOUT,
        gguf_states.LFM2,
        "experts",
    ),
)
