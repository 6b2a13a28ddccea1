"""Mixtures whose scores are sigmoids and chosen with a correction, as in DeepSeek-V3: GLM-4.5, dots, EXAONE, Solar,
MiniMax-M2, AFMoE, Hunyuan 3, Ling and Ring.

Sources: the configuration and modelling files of transformers (models/glm4_moe, dots1, exaone_moe, solar_open,
minimax_m2, afmoe, hy_v3); for Ling and Ring (which came with code of their own) and for GGUF llama.cpp's converter and
models (bailing.py, hunyuan.py, src/models/bailingmoe2.cpp, hy-v3.cpp).
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.config import AttentionConfig, EmbeddingConfig, HeadNorms, ModelConfig, NormsConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf, without
from headstart.models.families.experts import (
    BY_EXPERT,
    EXPERTS_LAYOUT,
    IN_BLOCK,
    count_of,
    first_dense,
    layout_with,
    shared,
    sigmoid_experts,
    used_of,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_MIXED, GGUF_NORMED_AFTER, chosen_by_sigmoid
from headstart.models.families.kin import exaone_layers
from headstart.models.families.llama import HF_LAYER, base_of, biased, windowed
from headstart.models.families.rope import rope_of, rotated_dim


def _minimax_m2(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    dim = fields.optional_integer("rotary_dim") or rotated_dim(fields, head_dim, 1.0)
    rope = rope_of(fields, dim, 5e6, whole_heads=False)
    config = base_of(fields, rope=rope, attention=AttentionConfig(qk_norm=HeadNorms(reach="all")))
    count = fields.integer("num_local_experts", 256)
    experts = ExpertsConfig(
        count, used_of(fields, count, 8), config.mlp_size, score="sigmoid", correction=True, normalised=True
    )
    return with_experts(config, experts)


def _exaone_moe(fields: Fields) -> ModelConfig:
    config = base_of(fields, default_eps=1e-5, attention=AttentionConfig(qk_norm=HeadNorms()))
    config = replace(config, layers=exaone_layers(fields, config.num_layers))
    count = count_of(fields, "num_experts", "num_local_experts", default=64)
    experts = sigmoid_experts(fields, count, 8, "num_shared_experts", 2.5)
    return with_experts(config, experts, first_dense(fields, config, 1))


def _afmoe(fields: Fields) -> ModelConfig:
    config = base_of(
        fields,
        default_head_dim=128,
        default_eps=1e-5,
        attention=AttentionConfig(qk_norm=HeadNorms(), gate="element"),
        norms=NormsConfig(post=True),
        embedding=EmbeddingConfig(fields.integer("hidden_size") ** 0.5 if fields.flag("mup_enabled", False) else 1.0),
    )
    every = fields.integer("global_attn_every_n_layers", 4)
    window = fields.integer("sliding_window", 1024)
    config = windowed(fields, config, window, lambda index: (index + 1) % every != 0, full=None)
    fields.require("score_func", "sigmoid", default="sigmoid")
    fields.require("route_norm", True, default=True)
    fields.require("n_group", 1, default=1)
    count = count_of(fields, "num_experts", "num_local_experts", default=64)
    named = fields.called({"routed_scaling_factor": "route_scale"}, {"moe_intermediate_size": 1408})
    experts = sigmoid_experts(named.with_defaults({"num_shared_experts": 2}), count, 6, "num_shared_experts")
    return with_experts(config, experts, set(range(fields.integer("num_dense_layers", 1, minimum=0))))


def _solar_open(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_of(
        fields,
        default_theta=1e6,
        default_head_dim=128,
        default_eps=1e-5,
        share=1.0,
        attention=AttentionConfig(qkv_bias=bias),
    )
    return with_experts(config, _glm_experts(fields))


def _glm4_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_of(
        fields,
        default_eps=1e-5,
        share=0.5,
        attention=AttentionConfig(qk_norm=HeadNorms() if fields.flag("use_qk_norm", False) else None, qkv_bias=bias),
    )
    return with_experts(config, _glm_experts(fields), first_dense(fields, config, 1))


def _glm_experts(fields: Fields) -> ExpertsConfig:
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=128)
    return sigmoid_experts(fields, count, 8, "n_shared_experts")


def _dots1(fields: Fields) -> ModelConfig:
    config = base_of(fields, attention=replace(biased(fields), qk_norm=HeadNorms()))
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    first = fields.integer("max_window_layers", config.num_layers, minimum=0)
    config = windowed(fields, config, window, lambda index: index >= first)
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=128)
    experts = sigmoid_experts(fields, count, 6, "n_shared_experts")
    return with_experts(config, experts, first_dense(fields, config, 0))


def _hy_v3(fields: Fields) -> ModelConfig:
    fields.require("mlp_bias", False, default=False)
    config = base_of(
        fields,
        default_theta=11_158_840.0,
        default_head_dim=128,
        default_eps=1e-5,
        attention=replace(biased(fields), qk_norm=HeadNorms()),
    )
    count = count_of(fields, "num_experts", "num_local_experts", default=192)
    named = fields.called({"routed_scaling_factor": "router_scaling_factor"}, {"moe_intermediate_size": 1536})
    experts = sigmoid_experts(named, count, 8, "num_shared_experts", 2.826)
    # GGUF files have a size of their own.
    shared_size = fields.integer("expert_shared_feed_forward_length", experts.shared_size, minimum=0)
    return with_experts(config, replace(experts, shared_size=shared_size), first_dense(fields, config, 1))


def _bailing_moe(fields: Fields) -> ModelConfig:
    """The second generation of Ling and Ring."""
    fields.require("score_function", "sigmoid", default="softmax")
    fields.require("norm_head", False, default=False)
    fields.require("use_bias", False, default=False)
    config = base_of(
        fields,
        default_theta=600_000.0,
        share=0.5,
        attention=AttentionConfig(
            qk_norm=HeadNorms() if fields.flag("use_qk_norm", True) else None,
            qkv_bias=fields.flag("use_qkv_bias", False),
        ),
    )
    experts = sigmoid_experts(fields, count_of(fields, "num_experts", "num_local_experts"), 8, "num_shared_experts")
    return with_experts(config, experts, first_dense(fields, config, 0))


_PLAIN = {"routed_scaling_factor": 1.0, "first_k_dense_replace": 0}
_BAILING_LAYER = without(HF_LAYER, "q", "k", "v") | {
    "qkv": "layers.{i}.attention.query_key_value",
    "output": "layers.{i}.attention.dense",
    "q_norm": "layers.{i}.attention.query_layernorm",
    "k_norm": "layers.{i}.attention.key_layernorm",
}
_BAILING = layout_with(
    BY_EXPERT | shared("shared_experts") | {"router_correction": "layers.{i}.mlp.gate.expert_bias"},
    layer=_BAILING_LAYER,
    embedding="word_embeddings",
    beyond=True,
)
_HY_LAYER = {"router": "layers.{i}.mlp.router.gate", "router_correction": "layers.{i}.mlp.expert_bias"}
_AFMOE_NAMES = {"route_norm": "expert_weights_norm", "num_dense_layers": "leading_dense_block_count"}

FAMILIES = (
    Family(
        "minimax_m2",
        _minimax_m2,
        layout_with(IN_BLOCK),
        Gguf("minimax-m2", GGUF_MIXED, {"rotary_dim": "rope.dimension_count"}, computed=chosen_by_sigmoid),
        "experts",
    ),
    Family(
        "exaone_moe",
        _exaone_moe,
        layout_with(
            BY_EXPERT | shared("shared_experts") | {"router_correction": "layers.{i}.mlp.e_score_correction_bias"}
        ),
        Gguf("exaone-moe", GGUF_MIXED, defaults={**_PLAIN, "sliding_window_pattern": 4}, computed=chosen_by_sigmoid),
        "experts",
    ),
    Family(
        "afmoe",
        _afmoe,
        layout_with(
            BY_EXPERT
            | shared("shared_experts")
            | {
                "router": "layers.{i}.mlp.router.gate",
                "router_correction": "layers.{i}.mlp.expert_bias",
                "attention_gate": "layers.{i}.self_attn.gate_proj",
                "attention_post_norm": "layers.{i}.post_attention_layernorm",
                "mlp_norm": "layers.{i}.pre_mlp_layernorm",
                "mlp_post_norm": "layers.{i}.post_mlp_layernorm",
            }
        ),
        Gguf(
            "afmoe",
            GGUF_MIXED,
            _AFMOE_NAMES,
            {"mup_enabled": True, "num_dense_layers": 0, "num_shared_experts": 1},
            chosen_by_sigmoid,
        ),
        "experts",
    ),
    Family("solar_open", _solar_open, EXPERTS_LAYOUT, kind="experts"),
    Family(
        "glm4_moe",
        _glm4_moe,
        replace(EXPERTS_LAYOUT, beyond=True),
        Gguf("glm4moe", GGUF_NORMED_AFTER, defaults={**_PLAIN, "use_qk_norm": True}, computed=chosen_by_sigmoid),
        "experts",
    ),
    Family(
        "hy_v3",
        _hy_v3,
        layout_with(BY_EXPERT | shared("shared_mlp") | _HY_LAYER, beyond=True),
        Gguf(
            "hy_v3",
            replace(
                GGUF_MIXED,
                layer={**GGUF_MIXED.layer, "router_correction": "blk.{i}.exp_probs_b"},
                spellings={"router_correction": "blk.{i}.exp_probs_b.bias"},
            ),
            defaults={**_PLAIN, "norm_topk_prob": True},
            computed=chosen_by_sigmoid,
        ),
        "experts",
    ),
    Family(
        "bailing_moe",
        _bailing_moe,
        _BAILING,
        Gguf(
            "bailingmoe2",
            replace(GGUF_MIXED, layer=without(GGUF_MIXED.layer, "q", "k", "v") | {"qkv": "blk.{i}.attn_qkv"}),
            defaults={**_PLAIN, "score_function": "sigmoid"},
            computed=chosen_by_sigmoid,
        ),
        "experts",
    ),
    Family("dots1", _dots1, EXPERTS_LAYOUT, Gguf("dots1", GGUF_MIXED, computed=chosen_by_sigmoid), "experts"),
)
