"""LFM2, LFM2-MoE and LFM3 (Liquid AI): gated short convolutions, and attention in some layers.

Sources: the configuration and modelling files of transformers (models/lfm2, lfm2_moe, lfm3); for GGUF llama.cpp's
converter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import AttentionConfig, HeadNorms, LayerConfig, ModelConfig, NormsConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf
from headstart.models.families.experts import used_of, with_experts
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYER, GGUF_LAYOUT, by_layer
from headstart.models.families.llama import HF_LAYOUT, base_of, biased
from headstart.models.families.rope import rope_of
from headstart.models.state_config import ConvolutionConfig

_KINDS = ("full_attention", "conv")


def _base(fields: Fields) -> ModelConfig:
    config = base_of(
        fields,
        tied=fields.flag("tie_embedding", True),
        default_theta=1_000_000.0,
        eps="norm_eps",
        default_eps=1e-5,
        default_activation=None,
        attention=AttentionConfig(qk_norm=HeadNorms()),
        convolution=ConvolutionConfig(fields.integer("conv_L_cache", 3, minimum=2), fields.flag("conv_bias", False)),
    )
    kinds = fields.kinds("layer_types", config.num_layers, _KINDS)
    if kinds is None:
        attending = fields.get("full_attn_idxs")
        known = list(range(config.num_layers)) if attending is None else attending
        if not isinstance(known, list):
            raise fields.bad("full_attn_idxs", attending, "a list of layers")
        kinds = ["full_attention" if index in known else "conv" for index in range(config.num_layers)]
    return replace(config, layers=_layers([kind == "conv" for kind in kinds]))


def _layers(convolving: list[bool]) -> tuple[LayerConfig, ...]:
    return tuple(LayerConfig(rope=None, mixer="convolution") if each else LayerConfig() for each in convolving)


def _lfm2(fields: Fields) -> ModelConfig:
    size = fields.optional_integer("block_ff_dim") or fields.integer("intermediate_size", 12288)
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", 256)
        size = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
        size = -(-size // multiple) * multiple
    return replace(_base(fields.with_entries(intermediate_size=size)), mlp_size=size)


def _lfm2_moe(fields: Fields) -> ModelConfig:
    config = _base(fields)
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


_LFM3_ROPES: dict[str, dict[str, object]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
}
_LFM3_KINDS = ("conv", "full_attention", "sliding_attention")


def _lfm3(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults({"rope_parameters": _LFM3_ROPES, "head_dim": 128})
    gated = fields.flag("use_attention_gate", True)
    config = base_of(
        fields,
        tied=fields.flag("tie_embedding", True),
        eps="norm_eps",
        default_eps=1e-5,
        default_activation=None,
        attention=replace(biased(fields), qk_norm=HeadNorms(), gate="head" if gated else None),
        norms=NormsConfig(post=fields.flag("use_sandwich_norm", True)),
        convolution=ConvolutionConfig(fields.integer("conv_L_cache", 7, minimum=2), fields.flag("conv_bias", False)),
    )
    count = config.num_layers
    kinds = fields.kinds("layer_types", count, _LFM3_KINDS) or [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv" for i in range(count)
    ]
    window = fields.integer("sliding_window", 256, maximum=MAX_POSITIONS)
    of_kind = {
        "conv": LayerConfig(rope=None, mixer="convolution"),
        "full_attention": LayerConfig(),
        "sliding_attention": LayerConfig(window, 1),
    }
    ropes = (rope_of(fields, config.head_dim, layer_type=kind, whole_heads=False) for kind in _LFM3_KINDS[1:])
    return replace(config, layers=tuple(of_kind[kind] for kind in kinds), ropes=tuple(ropes))


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
_LFM3 = _LAYER | {
    "output": "layers.{i}.self_attn.o_proj",
    "q_norm": "layers.{i}.self_attn.q_norm",
    "k_norm": "layers.{i}.self_attn.k_norm",
    "attention_gate": "layers.{i}.self_attn.gate_proj",
    "attention_post_norm": "layers.{i}.post_operator_norm",
    "mlp_post_norm": "layers.{i}.post_ffn_norm",
}
_LAYOUT = replace(HF_LAYOUT, final_norm="embedding_norm", layer=_LAYER)
_LFM3_LAYOUT = replace(_LAYOUT, layer=_LFM3)
_MOE_LAYOUT = replace(_LAYOUT, layer=_LAYER | _EXPERTS)


def _computed(fields: Fields) -> dict[str, Any]:
    heads, attending = by_layer(fields, "num_key_value_heads")
    return {**heads, "layer_types": [_KINDS[0] if each else _KINDS[1] for each in attending]}


_IN_GGUF = replace(
    GGUF_LAYOUT,
    final_norm="token_embd_norm",
    layer=GGUF_LAYER
    | {
        "convolution_input": "blk.{i}.shortconv.in_proj",
        "convolution_kernel": "blk.{i}.shortconv.conv",
        "convolution_output": "blk.{i}.shortconv.out_proj",
    },
)
_GGUF = Gguf(
    "lfm2",
    _IN_GGUF,
    {
        "norm_eps": "attention.layer_norm_rms_epsilon",
        "conv_L_cache": "shortconv.l_cache",
        "num_dense_layers": "leading_dense_block_count",
    },
    {"block_auto_adjust_ff_dim": False, "num_dense_layers": 0},
    _computed,
)

FAMILIES = (
    Family("lfm2", _lfm2, _LAYOUT, _GGUF),
    Family("lfm3", _lfm3, _LFM3_LAYOUT),
    Family("lfm2_moe", _lfm2_moe, _MOE_LAYOUT, replace(_GGUF, architecture="lfm2moe"), "experts"),
)
