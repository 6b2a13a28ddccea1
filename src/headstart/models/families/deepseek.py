"""Latent attention: DeepSeek-V2 and V3, Kimi K2, GLM-4.7-Flash and Mistral 4 with their experts, Youtu and MiniCPM3
without.

Sources: the configuration and modelling files of transformers (models/deepseek_v2, deepseek_v3, glm4_moe_lite,
mistral4, youtu, minicpm3; its kimi_k25 reads the text of Kimi K2 as DeepSeek-V3); for GGUF llama.cpp's converter, which
since April 2025 takes the matrix that raises keys and values apart, that of keys transposed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FoldedConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    QueryGrowth,
    RopeConfig,
)
from headstart.models.families import gguf_mixtures
from headstart.models.families.base import Family, Parts
from headstart.models.families.experts import (
    EXPERTS_LAYOUT,
    STACKED,
    count_of,
    first_dense,
    sigmoid_experts,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf_kin import growth_of_queries
from headstart.models.families.granite import divided, with_factor_of_layers
from headstart.models.families.kin import with_defaults
from headstart.models.families.layer_normed import without
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_from_gguf, base_from_hf, in_halves, mlp_of
from headstart.models.families.phi import GGUF_LONGROPE, longrope_from_gguf
from headstart.models.families.rope import growth, rope_from_gguf, rope_from_hf


def _base(
    fields: Fields,
    family: str,
    tied: bool,
    q_rank: int | None,
    kv_rank: int,
    sizes: tuple[int, int, int],
    **parts: Unpack[Parts],
) -> ModelConfig:
    """``q_rank``, ``kv_rank`` and ``sizes`` (of a head's unrotated part, its rotated one, its value): the defaults."""
    if fields.has("q_lora_rank"):
        q_rank = fields.optional_integer("q_lora_rank")
    keys = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    plain, turning, value = (fields.integer(key, size) for key, size in zip(keys, sizes, strict=True))
    rope = rope_from_hf(fields, turning, whole_heads=False)
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(fields, family, tied, rope=rope, default_head_dim=1, **parts)
    scaling = fields.within("rope_parameters") or fields.within("rope_scaling")
    scale = (plain + turning) ** -0.5
    if rope.scaling is not None and scaling is not None:
        of_all = scaling.optional_number("mscale_all_dim")
        scale *= 1.0 if of_all is None else growth(scaling.number("factor", 1.0), of_all) ** 2
    return replace(
        config,
        head_dim=plain + turning,
        num_kv_heads=config.num_heads,
        attention=AttentionConfig(scale=scale, output_bias=bias),
        latent=LatentConfig(fields.integer("kv_lora_rank", kv_rank), plain, turning, value, q_rank=q_rank, bias=bias),
        layers=(LayerConfig(mixer="latent"),) * config.num_layers,
    )


def _deepseek_v2(fields: Fields) -> ModelConfig:
    config = _base(fields, "deepseek_v2", False, 1536, 512, (128, 64, 128), mlp=mlp_of(fields))
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=64)
    size = fields.integer("moe_intermediate_size", 1407)
    method = fields.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.unsupported("topk_method", method, "greedy or group_limited_greedy")
    groups = fields.integer("n_group", 1) if method != "greedy" else 1
    experts = ExpertsConfig(
        count,
        fields.integer("num_experts_per_tok", 8, maximum=count),
        size,
        shared_size=size * fields.integer("n_shared_experts", 2, minimum=0),
        groups=groups,
        groups_used=fields.integer("topk_group", 1, maximum=groups) if groups > 1 else 1,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    return with_experts(config, experts, first_dense(fields, config, 0))


def _deepseek_v3(fields: Fields) -> ModelConfig:
    config = _base(fields, "deepseek_v3", False, 1536, 512, (128, 64, 128))
    if not fields.flag("rope_interleave", True):
        config = replace(config, family="deepseek_v3_halves")
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=256)
    experts = sigmoid_experts(fields, count, 8, "n_shared_experts", 2.5)
    return with_experts(config, experts, first_dense(fields, config, 3))


def _glm_lite(fields: Fields) -> ModelConfig:
    """GLM-4.7-Flash: DeepSeek-V3 with defaults of its own."""
    fields = with_defaults(fields, {"rms_norm_eps": 1e-5})
    fields.require("rope_interleave", True, default=True)
    config = _base(fields, "glm4_moe_lite", False, 768, 512, (192, 64, 256))
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=64)
    experts = sigmoid_experts(fields, count, 4, "n_shared_experts", 1.8)
    return with_experts(config, experts, first_dense(fields, config, 1))


def _mistral4(fields: Fields) -> ModelConfig:
    fields.require("rope_interleave", True, default=True)
    config = _base(fields, "mistral4", False, 1024, 256, (64, 64, 128))
    rope = fields.within("rope_parameters") or fields.within("rope_scaling")
    if rope is None:
        raise fields.missing("rope_parameters")
    grown = None
    if rope.optional_number("llama_4_scaling_beta") is not None:
        trained = rope.integer("original_max_position_embeddings", maximum=MAX_POSITIONS)
        grown = QueryGrowth(rope.number("llama_4_scaling_beta"), trained)
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=128)
    experts = replace(
        sigmoid_experts(fields, count, 4, "n_shared_experts"),
        score="softmax",
        correction=False,
    )
    return with_experts(
        replace(config, attention=replace(config.attention, query_growth=grown)),
        experts,
        first_dense(fields, config, 0),
    )


def _youtu(fields: Fields) -> ModelConfig:
    config = _base(fields, "youtu", True, 1536, 512, (128, 64, 128))
    fields.require("rope_interleave", True, default=True)
    return config


def _minicpm3(fields: Fields) -> ModelConfig:
    config = _base(fields, "minicpm3", True, 768, 256, (64, 32, fields.integer("v_head_dim", 64)), mlp=mlp_of(fields))
    of_all, depth = fields.number("scale_emb", 12), fields.number("scale_depth", 1.4)
    return _scaled(config, of_all, depth, fields.number("dim_model_base", 256))


def _scaled(config: ModelConfig, embedding: float, depth: float, base: float) -> ModelConfig:
    """MiniCPM's factors as ``granite`` has them: a layer's output times one is the stream divided by it."""
    config = replace(config, embedding=EmbeddingConfig(embedding), folded=FoldedConfig(config.hidden_size / base))
    return with_factor_of_layers(config, depth / config.num_layers**0.5)


def _turned_queries(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Rows head by head, the rotated ones last, in interleaved pairs -> the same in halves."""
    assert config.latent is not None
    heads = tensor.reshape(config.num_heads, config.head_dim, *tensor.shape[1:])
    plain = config.latent.plain_dim
    turned = [in_halves(head[plain:], config.latent.rope_dim, config.latent.rope_dim) for head in heads]
    return torch.cat((heads[:, :plain], torch.stack(turned)), dim=1).reshape(tensor.shape)


def _turned_key(tensor: Tensor, config: ModelConfig) -> Tensor:
    assert config.latent is not None
    rank, dim = config.latent.kv_rank, config.latent.rope_dim
    return torch.cat((tensor[:rank], in_halves(tensor[rank:], dim, dim)))


_LATENT = without(HF_LAYER, "q", "k", "v", "q_norm", "k_norm") | {
    "q": "layers.{i}.self_attn.q_proj",
    "q_down": "layers.{i}.self_attn.q_a_proj",
    "q_norm": "layers.{i}.self_attn.q_a_layernorm",
    "q_up": "layers.{i}.self_attn.q_b_proj",
    "kv_down": "layers.{i}.self_attn.kv_a_proj_with_mqa",
    "kv_norm": "layers.{i}.self_attn.kv_a_layernorm",
    "kv_up": "layers.{i}.self_attn.kv_b_proj",
}
_TURNED = {"q": _turned_queries, "q_up": _turned_queries, "kv_down": _turned_key}
_DENSE = replace(HF_LAYOUT, layer=_LATENT, convert=_TURNED)
_MIXED = replace(
    EXPERTS_LAYOUT,
    layer={**EXPERTS_LAYOUT.layer, **_LATENT},
    convert=_TURNED,
    without_bias=frozenset({"q"}),
    beyond=True,
)
_STACKED_LAYOUT = replace(
    _MIXED,
    layer=without(dict(_MIXED.layer), "router_correction", "expert_gate") | STACKED,
    whole=frozenset(STACKED),
)

_GGUF_LATENT = {
    "q": "blk.{i}.attn_q",
    "q_down": "blk.{i}.attn_q_a",
    "q_norm": "blk.{i}.attn_q_a_norm",
    "q_up": "blk.{i}.attn_q_b",
    "kv_down": "blk.{i}.attn_kv_a_mqa",
    "kv_norm": "blk.{i}.attn_kv_a_norm",
    "key_up": "blk.{i}.attn_k_b",
    "value_up": "blk.{i}.attn_v_b",
}
_GGUF = replace(
    gguf_mixtures.LAYOUT,
    layer=without(dict(gguf_mixtures.LAYOUT.layer), "q", "k", "v", "q_norm", "k_norm") | _GGUF_LATENT,
    convert=_TURNED,
)
_GGUF_JOINT = replace(
    _GGUF,
    layer=without(dict(_GGUF.layer), "key_up", "value_up") | {"kv_up": "blk.{i}.attn_kv_b"},
    ignored=(*_GGUF.ignored, r"blk\.\d+\.attn_[kv]_b\.weight"),
)
"""Of files from before the matrix was taken apart; some have both forms."""
_SOFTMAX, _SIGMOID = 1, 2
"""``expert_gating_func``."""


def _deepseek_gguf(fields: Fields) -> ModelConfig:
    heads, turning = fields.integer("attention.head_count"), fields.integer("rope.dimension_count")
    apart = "_mla" if fields.has("attention.key_length_mla") else ""
    both, value = (fields.integer(f"attention.{part}_length{apart}") for part in ("key", "value"))
    rope, scale = _gguf_rope(fields, turning)
    whole = {"attention.key_length": both, "attention.value_length": both, "attention.head_count_kv": heads}
    gating = fields.integer("expert_gating_func", _SOFTMAX)
    if gating not in (_SOFTMAX, _SIGMOID):
        raise fields.unsupported("expert_gating_func", gating, f"{_SOFTMAX} or {_SIGMOID}, softmax or sigmoid")
    config = base_from_gguf(
        fields.with_entries(**whole),
        ("deepseek_v3" if gating == _SIGMOID else "deepseek_v2") + ("" if apart else "_joint"),
        rope=rope,
        experts=True,
        attention=AttentionConfig(scale=both**-0.5 * scale),
        latent=LatentConfig(
            fields.integer("attention.kv_lora_rank"),
            both - turning,
            turning,
            value,
            q_rank=fields.optional_integer("attention.q_lora_rank"),
        ),
    )
    grown = growth_of_queries(fields)
    config = replace(
        config,
        layers=(LayerConfig(mixer="latent"),) * config.num_layers,
        attention=replace(config.attention, query_growth=grown),
    )
    if not fields.integer("expert_count", 0, minimum=0):
        return config  # Youtu
    size, groups = fields.integer("expert_feed_forward_length"), fields.integer("expert_group_count", 1)
    experts = gguf_mixtures.experts_of(
        fields,
        size,
        fields.flag("expert_weights_norm", False),
        shared_size=size * fields.integer("expert_shared_count", 0, minimum=0),
        score="sigmoid" if gating == _SIGMOID else "softmax",
        correction=gating == _SIGMOID,
        groups=groups,
        groups_used=fields.integer("expert_group_used_count", groups, maximum=groups),
        group_score="two_best" if gating == _SIGMOID else "best",
        scale=fields.number("expert_weights_scale", 1.0),
    )
    return with_experts(config, experts, set(range(fields.integer("leading_dense_block_count", 0, minimum=0))))


def _minicpm3_gguf(fields: Fields) -> ModelConfig:
    """Its factors are no entries, nor is the size of values."""
    heads, both = fields.integer("attention.head_count"), fields.integer("attention.key_length")
    rope = longrope_from_gguf(fields)
    latent = LatentConfig(
        fields.integer("attention.kv_lora_rank"),
        both - rope.dim,
        rope.dim,
        fields.integer("embedding_length") // heads,
        q_rank=fields.optional_integer("attention.q_lora_rank"),
    )
    whole = {"attention.value_length": both, "attention.head_count_kv": heads}
    config = base_from_gguf(fields.with_entries(**whole), "minicpm3", rope=rope, latent=latent)
    config = replace(config, layers=(LayerConfig(mixer="latent"),) * config.num_layers)
    return _scaled(config, 12.0, 1.4, 256.0)


def _gguf_rope(fields: Fields, dim: int) -> tuple[RopeConfig, float]:
    """The rotation, and what it makes scores grow by: keys are not stretched by themselves."""
    weight = fields.number("rope.scaling.yarn_log_multiplier", 1.0)
    rope = rope_from_gguf(fields, dim)
    if rope.scaling is None or rope.scaling["rope_type"] != "yarn":
        return rope, 1.0
    grown = growth(fields.number("rope.scaling.factor"), 10 * weight) ** 2
    return replace(rope, scaling=rope.scaling | {"attention_factor": 1.0}), grown


FAMILIES = (
    Family("deepseek_v2", "deepseek_v2", "deepseek2", _deepseek_v2, _deepseek_gguf, _MIXED, _GGUF, "experts"),
    Family("deepseek_v3", "deepseek_v3", "deepseek2", _deepseek_v3, _deepseek_gguf, _MIXED, _GGUF, "experts"),
    Family("glm4_moe_lite", "glm4_moe_lite", "deepseek2", _glm_lite, None, _MIXED, None, "experts"),
    Family("kimi_k2", "kimi_k2", "", _deepseek_v3, None, _MIXED, None, "experts"),
    Family("mistral4", "mistral4", "mistral4", _mistral4, _deepseek_gguf, _STACKED_LAYOUT, _GGUF, "experts"),
    Family("deepseek_v2_joint", "", "", _deepseek_v2, None, _MIXED, _GGUF_JOINT, "experts"),
    Family("deepseek_v3_joint", "", "", _deepseek_v3, None, _MIXED, _GGUF_JOINT, "experts"),
    Family("deepseek_v3_halves", "", "", _deepseek_v3, None, replace(_MIXED, convert={}), None, "experts"),
    Family("youtu", "youtu", "", _youtu, None, _DENSE, None),
    Family(
        "minicpm3",
        "minicpm3",
        "minicpm3",
        _minicpm3,
        _minicpm3_gguf,
        replace(_DENSE, convert={"final_norm": divided}),
        replace(_GGUF_JOINT, convert={"final_norm": divided}, **GGUF_LONGROPE),
    ),
)
