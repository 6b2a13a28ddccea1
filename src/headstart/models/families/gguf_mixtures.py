"""Mixtures of experts as GGUF files have them: the experts of a layer stacked in one tensor for each matrix.

Sources: llama.cpp's converter (conversion/*.py) for names and metadata, its src/llama-model.cpp for what no file says:
whether the weights of the chosen experts are divided by their sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    HeadNorms,
    LayerConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    QueryGrowth,
    RopeConfig,
)
from headstart.models.families.base import Parts, TensorLayout
from headstart.models.families.experts import with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf_layers import (
    rotated_in_windows,
    slides_from_gguf,
    window_from_gguf,
    without_guessing_layers,
)
from headstart.models.families.granite import divided, scaled_from_gguf
from headstart.models.families.kin import GGUF_POST_NORMS
from headstart.models.families.llama import GGUF_INTERLEAVED, GGUF_LAYER, GGUF_LAYOUT, base_from_gguf
from headstart.models.families.phi import GGUF_LONGROPE, longrope_from_gguf
from headstart.models.families.rope import rope_from_gguf

_SIGMOID = 2
"""``expert_gating_func`` of sigmoid."""
_MAVERICK = 128
"""Experts of the one Llama 4 that does not norm its heads."""


def experts_of(fields: Fields, size: int, normalised: bool, **more: Any) -> ExpertsConfig:
    count = fields.integer("expert_count")
    used = fields.integer("expert_used_count", maximum=count)
    return ExpertsConfig(count, used, size, normalised=normalised, **more)


def mixtral(fields: Fields) -> ModelConfig:
    """Llama's architecture with experts; without any it is Llama."""
    config = base_from_gguf(fields, "mixtral", experts=True)
    window = window_from_gguf(fields)
    config = replace(config, layers=(LayerConfig(window),) * config.num_layers)
    return with_experts(config, experts_of(fields, config.mlp_size, True))


def olmoe(fields: Fields) -> ModelConfig:
    config = base_from_gguf(fields, "olmoe", experts=True, attention=AttentionConfig(qk_norm=HeadNorms(reach="all")))
    return with_experts(config, experts_of(fields, config.mlp_size, False))


def qwen2_moe(fields: Fields) -> ModelConfig:
    config = base_from_gguf(fields, "qwen2_moe", experts=True, attention=AttentionConfig(qkv_bias=True))
    size = fields.integer("expert_feed_forward_length")
    shared = fields.integer("expert_shared_feed_forward_length")
    return with_experts(config, experts_of(fields, size, False, shared_size=shared, shared_gate=True))


def qwen3_moe(fields: Fields) -> ModelConfig:
    config = base_from_gguf(fields, "qwen3_moe", experts=True, attention=AttentionConfig(qk_norm=HeadNorms()))
    return with_experts(config, experts_of(fields, fields.integer("expert_feed_forward_length"), True))


def granitemoe(fields: Fields) -> ModelConfig:
    config = scaled_from_gguf(fields, "granitemoe", experts=True)
    shared = fields.integer("expert_shared_feed_forward_length", 0, minimum=0)
    experts = experts_of(fields, config.mlp_size, True, shared_size=shared)
    return with_experts(replace(config, family="granitemoeshared" if shared else "granitemoe"), experts)


def _like_deepseek(fields: Fields, family: str, rope: RopeConfig | None, **parts: Unpack[Parts]) -> ModelConfig:
    config = base_from_gguf(fields, family, experts=True, rope=rope, **parts)
    if fields.integer("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise fields.unsupported("expert_gating_func", fields.get("expert_gating_func"), f"{_SIGMOID}, sigmoid")
    size = fields.integer("expert_feed_forward_length")
    shared = size * fields.integer("expert_shared_count", 1, minimum=0)
    experts = experts_of(
        fields,
        size,
        fields.flag("expert_weights_norm", True),
        shared_size=shared,
        score="sigmoid",
        correction=True,
        scale=fields.number("expert_weights_scale", 1.0),
    )
    return with_experts(config, experts, set(range(fields.integer("leading_dense_block_count", 0, minimum=0))))


def dots1(fields: Fields) -> ModelConfig:
    return _like_deepseek(fields, "dots1", None, attention=AttentionConfig(qk_norm=HeadNorms()))


def glm4_moe(fields: Fields) -> ModelConfig:
    rope = rope_from_gguf(fields, fields.integer("rope.dimension_count"))
    return _like_deepseek(
        without_guessing_layers(fields), "glm4_moe", rope, attention=AttentionConfig(qk_norm=HeadNorms())
    )


def minimax_m2(fields: Fields) -> ModelConfig:
    rope = rope_from_gguf(fields, fields.integer("rope.dimension_count"), 5e6)
    return _like_deepseek(
        fields.with_entries(expert_shared_count=0),
        "minimax_m2",
        rope,
        attention=AttentionConfig(qk_norm=HeadNorms(reach="all")),
    )


def exaone_moe(fields: Fields) -> ModelConfig:
    config = _like_deepseek(
        without_guessing_layers(fields), "exaone_moe", None, attention=AttentionConfig(qk_norm=HeadNorms())
    )
    return _in_windows(fields, config)


def _in_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    sights = rotated_in_windows(window_from_gguf(fields), slides_from_gguf(fields, config.num_layers, 4))
    pairs = zip(sights, config.layers, strict=True)
    return replace(config, layers=tuple(replace(sight, channel=layer.channel) for sight, layer in pairs))


def afmoe(fields: Fields) -> ModelConfig:
    config = _like_deepseek(
        fields,
        "afmoe",
        None,
        attention=AttentionConfig(qk_norm=HeadNorms(), gate="element"),
        norms=NormsConfig(post=True),
    )
    return replace(_in_windows(fields, config), embedding=EmbeddingConfig(config.hidden_size**0.5))


def ernie4_5_moe(fields: Fields) -> ModelConfig:
    config = base_from_gguf(fields, "ernie4_5_moe", experts=True, default_theta=500_000.0)
    size = fields.integer("expert_feed_forward_length")
    shared = fields.integer(
        "expert_shared_feed_forward_length", size * fields.integer("expert_shared_count", 0, minimum=0), minimum=0
    )
    first = fields.integer("leading_dense_block_count", 0, minimum=0)
    every = fields.integer("interleave_moe_layer_step", 1)
    dense = {index for index in range(config.num_layers) if index < first or (index + 1) % every}
    return with_experts(config, experts_of(fields, size, True, shared_size=shared, correction=True), dense)


def hunyuan_moe(fields: Fields) -> ModelConfig:
    config = base_from_gguf(
        fields, "hunyuan_v1_moe", experts=True, attention=AttentionConfig(qk_norm=HeadNorms(rotated=True))
    )
    size = fields.integer("expert_feed_forward_length", config.mlp_size)
    shared = fields.integer("expert_shared_feed_forward_length", config.mlp_size)
    return with_experts(config, experts_of(fields, size, True, shared_size=shared))


def mellum(fields: Fields) -> ModelConfig:
    config = base_from_gguf(
        fields, "mellum", experts=True, default_theta=500_000.0, attention=AttentionConfig(qk_norm=HeadNorms())
    )
    window = window_from_gguf(fields)
    slides = slides_from_gguf(fields, config.num_layers, 0)
    layers = tuple(LayerConfig(window, 1) if each and window else LayerConfig() for each in slides)
    # Scaling stretches the layers that see everything alone.
    local = RopeConfig(fields.number("rope.freq_base_swa", config.ropes[0].theta), config.head_dim)
    config = replace(config, layers=layers, ropes=(*config.ropes, local))
    return with_experts(config, experts_of(fields, fields.integer("expert_feed_forward_length"), True))


def phimoe(fields: Fields) -> ModelConfig:
    """llama.cpp computes its experts' scores otherwise than the model was trained with."""
    config = base_from_gguf(
        fields,
        "phimoe",
        experts=True,
        rope=longrope_from_gguf(fields),
        norms=NormsConfig("layer"),
        head=OutputHeadConfig(bias=True),
    )
    window = window_from_gguf(fields)
    config = replace(config, layers=(LayerConfig(window),) * config.num_layers)
    return with_experts(config, experts_of(fields, config.mlp_size, False, score="sparsemixer"))


def llama4(fields: Fields) -> ModelConfig:
    """The chunk of 8192, the layers without positions and what queries there grow by are no entries."""
    count = fields.integer("expert_count")
    normed = count != _MAVERICK
    config = base_from_gguf(
        fields,
        "llama4",
        experts=True,
        default_theta=500_000.0,
        attention=AttentionConfig(
            qk_norm=HeadNorms(learnt=False, rotated=True, everywhere=False) if normed else None,
            query_growth=QueryGrowth(0.1, 8192, everywhere=False),
        ),
    )
    rotated = [(index + 1) % 4 != 0 for index in range(config.num_layers)]
    layers = tuple(LayerConfig(rope=0 if each else None, chunk=8192 if each else None) for each in rotated)
    size, step = fields.integer("expert_feed_forward_length"), fields.integer("interleave_moe_layer_step", 1)
    experts = experts_of(fields, size, False, shared_size=size, score="sigmoid", scales_input=True)
    dense = {index for index in range(config.num_layers) if (index + 1) % step}
    return with_experts(replace(config, layers=layers), experts, dense)


def gpt_oss(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("attention.key_length", 64)
    rope = rope_from_gguf(fields, head_dim, 150_000.0)
    if rope.scaling is not None:
        rope = replace(rope, scaling=rope.scaling | {"truncate": False})
    config = base_from_gguf(
        fields,
        "gpt_oss",
        experts=True,
        rope=rope,
        attention=AttentionConfig(qkv_bias=True, output_bias=True, sinks=True),
    )
    window = fields.integer("attention.sliding_window", 128)
    layers = tuple(LayerConfig(None if i % 2 else window) for i in range(config.num_layers))
    size = fields.integer("expert_feed_forward_length", config.mlp_size)
    experts = experts_of(fields, size, True, router_bias=True, bias=True, clamp=7.0)
    return with_experts(replace(config, layers=layers), experts)


_STACKS = {
    "router": "blk.{i}.ffn_gate_inp",
    "expert_gate": "blk.{i}.ffn_gate_exps",
    "expert_up": "blk.{i}.ffn_up_exps",
    "expert_down": "blk.{i}.ffn_down_exps",
    "router_correction": "blk.{i}.exp_probs_b.bias",
    "shared_gate": "blk.{i}.ffn_gate_shexp",
    "shared_up": "blk.{i}.ffn_up_shexp",
    "shared_down": "blk.{i}.ffn_down_shexp",
    "shared_scale": "blk.{i}.ffn_gate_inp_shexp",
    "expert_gate_bias": "blk.{i}.ffn_gate_exps.bias",
    "expert_up_bias": "blk.{i}.ffn_up_exps.bias",
    "expert_down_bias": "blk.{i}.ffn_down_exps.bias",
    "sinks": "blk.{i}.attn_sinks",
}
LAYOUT: TensorLayout = replace(
    GGUF_LAYOUT,
    layer=GGUF_LAYER | _STACKS,
    whole=frozenset({"router_correction", "expert_gate_bias", "expert_up_bias", "expert_down_bias"}),
    flat=frozenset({"shared_scale"}),
    beyond=True,
)
INTERLEAVED: TensorLayout = replace(LAYOUT, convert=GGUF_INTERLEAVED.convert)
GRANITE: TensorLayout = replace(LAYOUT, convert={**GGUF_INTERLEAVED.convert, "final_norm": divided})
NORMED_AFTER: TensorLayout = replace(LAYOUT, layer={**LAYOUT.layer, "mlp_norm": "blk.{i}.post_attention_norm"})
"""Where the norm before the experts is named for what it follows."""
AFMOE: TensorLayout = replace(LAYOUT, layer={**LAYOUT.layer, **GGUF_POST_NORMS, "attention_gate": "blk.{i}.attn_gate"})
PHIMOE: TensorLayout = replace(LAYOUT, **GGUF_LONGROPE)
