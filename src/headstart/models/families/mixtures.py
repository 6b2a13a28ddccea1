"""Mixtures of experts around the attention of Llama's kin: Mixtral, Qwen 2 and 3, OLMoE, FlexOlmo, Phi-3.5, Granite,
Hunyuan, ERNIE 4.5, Mellum.

Sources: the configuration and modelling files of transformers (models of these names with "moe"); for GGUF llama.cpp's
converter, which stacks the experts of a layer in one tensor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from headstart.models.config import AttentionConfig, HeadNorms, LayerConfig, ModelConfig, NormsConfig, OutputHeadConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf
from headstart.models.families.experts import (
    BY_EXPERT,
    IN_BLOCK,
    count_of,
    first_dense,
    layout_with,
    shared,
    used_of,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_MIXED
from headstart.models.families.granite import GGUF_NAMES, GRANITE_EXPERTS, divided, gguf_entries, scaled_of
from headstart.models.families.kin import HF_INTERLEAVED, POST_NORMS, hunyuan_rope
from headstart.models.families.llama import (
    GGUF_INTERLEAVED,
    GGUF_MIXED_INTERLEAVED,
    base_of,
    biased,
    qwen_windows,
    windowed,
)
from headstart.models.families.phi import GGUF_LONGROPE, longrope_of
from headstart.models.families.rope import rope_of


def _mixtral(fields: Fields) -> ModelConfig:
    layer = LayerConfig(fields.optional_integer("sliding_window", maximum=MAX_POSITIONS))
    config = base_of(fields, default_theta=1e6, default_eps=1e-5, layer=layer)
    count = fields.integer("num_local_experts", 8)
    return with_experts(config, ExpertsConfig(count, used_of(fields, count, 2), config.mlp_size, normalised=True))


def _phimoe(fields: Fields) -> ModelConfig:
    rope = longrope_of(fields, default_theta=1e6)
    config = base_of(
        fields,
        rope=rope,
        default_eps=1e-5,
        norms=NormsConfig("layer"),
        attention=biased(fields),
        layer=LayerConfig(fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)),
        head=OutputHeadConfig(bias=fields.flag("lm_head_bias", False)),
    )
    if fields.number("router_jitter_noise", 0.01) != 0.01:
        raise fields.unsupported("router_jitter_noise", fields.get("router_jitter_noise"), "0.01")
    count = fields.integer("num_local_experts", 16)
    fields.require("num_experts_per_tok", 2, default=2)
    return with_experts(config, ExpertsConfig(count, 2, config.mlp_size, score="sparsemixer"))


def _qwen2_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("qkv_bias", True)
    config = qwen_windows(fields, base_of(fields, attention=AttentionConfig(qkv_bias=bias)))
    return qwen_experts(
        fields,
        config,
        shared_size=fields.integer("shared_expert_intermediate_size", 5632),
        shared_gate=True,
        size=fields.integer("moe_intermediate_size", 1408),
        count=count_of(fields, "num_experts", "num_local_experts", default=60),
        used=4,
    )


def _qwen3_moe(fields: Fields) -> ModelConfig:
    config = base_of(fields, attention=replace(biased(fields), qk_norm=HeadNorms()))
    if fields.flag("use_sliding_window", False):
        window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
        config = replace(config, layers=(LayerConfig(window),) * config.num_layers)
    return qwen_experts(
        fields,
        config,
        size=fields.integer("moe_intermediate_size", 768),
        count=count_of(fields, "num_experts", "num_local_experts", default=128),
        used=8,
    )


def qwen_experts(fields: Fields, config: ModelConfig, count: int, size: int, used: int, **more: Any) -> ModelConfig:
    step = fields.integer("decoder_sparse_step", 1)
    named = fields.layers("mlp_only_layers")
    dense = {i for i in range(config.num_layers) if i in named or (i + 1) % step}
    normalised = fields.flag("norm_topk_prob", False)
    experts = ExpertsConfig(count, used_of(fields, count, used), size, normalised=normalised, **more)
    return with_experts(config, experts, dense)


def _olmo_experts(
    fields: Fields, pre_norms: bool, default_eps: float, theta: float, experts: tuple[int, int]
) -> ModelConfig:
    config = base_of(
        fields,
        default_theta=theta,
        default_eps=default_eps,
        norms=NormsConfig(pre=pre_norms, post=not pre_norms),
        attention=replace(biased(fields), qk_norm=HeadNorms(reach="all"), qkv_clip=fields.optional_number("clip_qkv")),
    )
    count = count_of(fields, "num_experts", "num_local_experts", default=experts[0])
    used = used_of(fields, count, experts[1])
    normalised = fields.flag("norm_topk_prob", False)
    return with_experts(config, ExpertsConfig(count, used, config.mlp_size, normalised=normalised))


def _granitemoe(fields: Fields) -> ModelConfig:
    return _granite_experts(fields, 0)


def _granitemoeshared(fields: Fields) -> ModelConfig:
    shared = fields.integer("shared_intermediate_size", 1024, minimum=0)
    return _granite_experts(fields, shared)


def _granite_shared_or_not(fields: Fields) -> ModelConfig:
    """GGUF has one architecture for both."""
    if not fields.get("shared_intermediate_size"):
        return _granitemoe(fields)
    return replace(_granitemoeshared(fields), family="granitemoeshared")


def _granite_experts(fields: Fields, shared_size: int) -> ModelConfig:
    config = scaled_of(fields)
    count = fields.integer("num_local_experts", 8)
    experts = ExpertsConfig(count, used_of(fields, count, 2), config.mlp_size, shared_size=shared_size, normalised=True)
    return with_experts(config, experts)


def _hunyuan_moe(fields: Fields) -> ModelConfig:
    config = base_of(
        fields,
        rope=hunyuan_rope(fields),
        default_eps=1e-5,
        attention=replace(biased(fields), qk_norm=HeadNorms(rotated=True)),
    )
    count, used = _same(fields, "num_experts", 1), _same(fields, "moe_topk", 1)
    # GGUF files have sizes of their own for each.
    size, shared = (fields.integer(f"expert_{of}feed_forward_length", config.mlp_size) for of in ("", "shared_"))
    return with_experts(config, ExpertsConfig(count, used, size, shared_size=shared, normalised=True))


def _same(fields: Fields, key: str, default: int) -> int:
    """A number that may be given layer by layer."""
    value = fields.get(key)
    if isinstance(value, list) and value and len({*map(str, value)}) == 1:
        fields = fields.with_entries(**{key: value[0]})
    return fields.integer(key, default)


def _ernie_moe(fields: Fields) -> ModelConfig:
    config = base_of(fields, tied=True, default_theta=500_000.0, default_eps=1e-5)
    fields.require("use_bias", False, default=False)
    count = count_of(fields, "moe_num_experts", "num_experts", default=64)
    size = fields.integer("moe_intermediate_size", 1536)
    first, every = fields.integer("moe_layer_start_index", 1, minimum=0), fields.integer("moe_layer_interval", 1)
    last = fields.get("moe_layer_end_index")
    last = config.num_layers - 1 if last in (None, -1) else fields.integer("moe_layer_end_index", minimum=0)
    dense = {i for i in range(config.num_layers) if (i + 1) % every or not first <= i <= last}
    experts = ExpertsConfig(
        count,
        fields.integer("moe_k", fields.integer("num_experts_per_tok", 6), maximum=count),
        size,
        shared_size=fields.integer(
            "expert_shared_feed_forward_length",
            size * fields.integer("moe_num_shared_experts", 2, minimum=0),
            minimum=0,
        ),
        correction=True,
        normalised=True,
    )
    return with_experts(config, experts, dense)


def _mellum(fields: Fields) -> ModelConfig:
    config = base_of(fields, default_head_dim=128, attention=replace(biased(fields), qk_norm=HeadNorms()))
    full = rope_of(fields, config.head_dim, 500_000.0, "full_attention")
    local = rope_of(fields, config.head_dim, 10_000.0, "sliding_attention")
    config = windowed(fields, config, fields.integer("sliding_window", 1024), lambda _: False, within=1)
    count = count_of(fields, "num_experts", "num_local_experts", default=64)
    experts = ExpertsConfig(
        count,
        used_of(fields, count, 8),
        fields.integer("moe_intermediate_size", 896),
        normalised=fields.flag("norm_topk_prob", True),
    )
    config = replace(config, ropes=(full, local))
    dense = first_dense(fields, config, 0)
    return with_experts(config, experts, dense)


_HUNYUAN = {
    "q_norm": "layers.{i}.self_attn.query_layernorm",
    "k_norm": "layers.{i}.self_attn.key_layernorm",
    "router": "layers.{i}.mlp.gate.wg",
}


_GRANITE = layout_with(GRANITE_EXPERTS, convert={"final_norm": divided})
_GRANITE_IN_GGUF = replace(GGUF_MIXED, convert={**GGUF_INTERLEAVED.convert, "final_norm": divided})
_GRANITE_GGUF = Gguf(
    "granitemoe",
    _GRANITE_IN_GGUF,
    GGUF_NAMES,
    {"shared_intermediate_size": 0},
    gguf_entries,
    read=_granite_shared_or_not,
)
_ERNIE_NAMES = {
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
}

_olmoe = partial(_olmo_experts, pre_norms=True, default_eps=1e-5, theta=10_000.0, experts=(64, 8))
_flex_olmo = partial(_olmo_experts, pre_norms=False, default_eps=1e-6, theta=500_000.0, experts=(7, 5))

FAMILIES = (
    Family("mixtral", _mixtral, layout_with(IN_BLOCK), Gguf("llama", GGUF_MIXED_INTERLEAVED), "experts"),
    Family(
        "phimoe",
        _phimoe,
        layout_with(IN_BLOCK),
        Gguf("phimoe", replace(GGUF_MIXED, **GGUF_LONGROPE), defaults={"lm_head_bias": True}),
        "experts",
    ),
    Family(
        "qwen2_moe",
        _qwen2_moe,
        layout_with(BY_EXPERT | shared("shared_expert") | {"shared_scale": "layers.{i}.mlp.shared_expert_gate"}),
        Gguf("qwen2moe", GGUF_MIXED),
        "experts",
    ),
    Family(
        "qwen3_moe",
        _qwen3_moe,
        layout_with(BY_EXPERT),
        Gguf("qwen3moe", GGUF_MIXED, defaults={"norm_topk_prob": True}),
        "experts",
    ),
    Family("olmoe", _olmoe, layout_with(BY_EXPERT), Gguf("olmoe", GGUF_MIXED), "experts"),
    Family("flex_olmo", _flex_olmo, layout_with(BY_EXPERT | POST_NORMS), kind="experts"),
    Family("granitemoe", _granitemoe, _GRANITE, _GRANITE_GGUF, "experts"),
    Family("granitemoeshared", _granitemoeshared, _GRANITE, _GRANITE_GGUF, "experts"),
    Family(
        "hunyuan_v1_moe",
        _hunyuan_moe,
        layout_with(BY_EXPERT | shared("shared_mlp") | _HUNYUAN),
        Gguf("hunyuan-moe", GGUF_MIXED),
        "experts",
    ),
    Family(
        "ernie4_5_moe",
        _ernie_moe,
        layout_with(
            BY_EXPERT
            | shared("shared_experts")
            | {"router_correction": "layers.{i}.mlp.moe_statics.e_score_correction_bias"},
            HF_INTERLEAVED,
            as_rows=frozenset({"router_correction"}),
        ),
        Gguf(
            "ernie4_5-moe",
            GGUF_MIXED_INTERLEAVED,
            _ERNIE_NAMES,
            {"moe_layer_start_index": 0, "moe_num_shared_experts": 0},
        ),
        "experts",
    ),
    Family("mellum", _mellum, layout_with(BY_EXPERT), Gguf("mellum", GGUF_MIXED), "experts"),
)
