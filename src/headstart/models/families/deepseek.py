"""Latent attention: DeepSeek-V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5 and Mistral 4 with their experts, Youtu and
MiniCPM3 without.

Sources: the configuration and modelling files of transformers (models/deepseek_v2, deepseek_v3, deepseek_v32,
glm_moe_dsa, glm4_moe_lite, mistral4, youtu, minicpm3; its kimi_k25 reads the text of Kimi K2 as DeepSeek-V3); for GGUF
llama.cpp's converter, which since April 2025 takes the matrix that raises keys and values apart, that of keys
transposed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FoldedConfig,
    IndexerConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    RopeConfig,
)
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf, Parts, without
from headstart.models.families.experts import (
    EXPERTS_LAYOUT,
    STACKED,
    count_of,
    first_dense,
    sigmoid_experts,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_MIXED
from headstart.models.families.granite import divided, with_factor_of_layers
from headstart.models.families.kin import query_growth
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, in_halves, mlp_of
from headstart.models.families.phi import GGUF_LONGROPE
from headstart.models.families.rope import growth, longrope_if_any, rope_of


def latent_of(
    fields: Fields,
    q_rank: int | None,
    kv_rank: int,
    sizes: tuple[int, int, int],
    rope: RopeConfig | None = None,
    rotated: bool = True,
    family: str = "",
    tied: bool = False,
    **parts: Unpack[Parts],
) -> ModelConfig:
    """``q_rank``, ``kv_rank`` and ``sizes`` (of a head's unrotated part, its rotated one, its value): the defaults;
    ``rotated``: whether anything is."""
    if fields.has("q_lora_rank"):
        q_rank = fields.optional_integer("q_lora_rank")
    keys = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    least = (1, int(rotated), 1)
    plain, turning, value = (fields.integer(*each) for each in zip(keys, sizes, least, strict=True))
    if rotated:
        rope = rope or rope_of(fields, turning, whole_heads=False)
    else:
        parts["ropes"] = ()
    config = base_of(fields, family, tied, rope=rope, default_head_dim=1, **parts)
    scale = (plain + turning) ** -0.5 * (1.0 if rope is None else _growth_of_scores(fields, rope))
    if fields.of_gguf and rope is not None and rope.scaling is not None and rope.scaling["rope_type"] == "yarn":
        # What keys grow by is in the scores.
        config = replace(config, ropes=(replace(rope, scaling=rope.scaling | {"attention_factor": 1.0}),))
    bias = fields.flag("attention_bias", False)
    return replace(
        config,
        head_dim=plain + turning,
        num_kv_heads=config.num_heads,
        attention=AttentionConfig(scale=scale, output_bias=bias),
        latent=LatentConfig(fields.integer("kv_lora_rank", kv_rank), plain, turning, value, q_rank=q_rank, bias=bias),
        layers=(LayerConfig(rope=0 if rotated else None, mixer="latent"),) * config.num_layers,
    )


def _growth_of_scores(fields: Fields, rope: RopeConfig) -> float:
    """By a rotation that is stretched."""
    if fields.of_gguf:
        if rope.scaling is None or rope.scaling["rope_type"] != "yarn":
            return 1.0
        weight = fields.number("rope.scaling.yarn_log_multiplier", 1.0)
        return growth(fields.number("rope.scaling.factor"), 10 * weight) ** 2
    scaling = fields.within("rope_parameters") or fields.within("rope_scaling")
    of_all = None if rope.scaling is None or scaling is None else scaling.optional_number("mscale_all_dim")
    return 1.0 if of_all is None or scaling is None else growth(scaling.number("factor", 1.0), of_all) ** 2


def _deepseek_v2(fields: Fields) -> ModelConfig:
    config = latent_of(fields, 1536, 512, (128, 64, 128), mlp=mlp_of(fields))
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
    config = latent_of(fields, 1536, 512, (128, 64, 128), family="deepseek_v3")
    if not fields.flag("rope_interleave", True):
        config = replace(config, family="deepseek_v3_halves")
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=256)
    experts = sigmoid_experts(fields, count, 8, "n_shared_experts", 2.5)
    return with_experts(config, experts, first_dense(fields, config, 3))


def _glm_lite(fields: Fields) -> ModelConfig:
    """GLM-4.7-Flash: DeepSeek-V3 with defaults of its own."""
    fields = fields.with_defaults({"rms_norm_eps": 1e-5})
    fields.require("rope_interleave", True, default=True)
    config = latent_of(fields, 768, 512, (192, 64, 256))
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=64)
    experts = sigmoid_experts(fields, count, 4, "n_shared_experts", 1.8)
    return with_experts(config, experts, first_dense(fields, config, 1))


def indexed(
    fields: Fields, config: ModelConfig, name: str, shares: list[bool], heads: int = 32, pool: int = 1
) -> ModelConfig:
    """Rows see the tokens that an indexer chooses; ``shares`` [layer] another's choice where no entry says so."""
    assert config.latent is not None
    if config.latent.q_rank is None:
        raise fields.unsupported("q_lora_rank", None, "a number, of which the indexer's queries are made")
    heads, last = fields.integer("index_n_heads", heads), name == "hy_v4"
    size = fields.integer("index_head_dim", 128, minimum=max(1, config.latent.rope_dim))
    chosen = fields.integer("index_topk", 2048, maximum=MAX_POSITIONS)
    if chosen % pool:
        raise fields.bad("index_topk", chosen, f"a multiple of {pool}")
    indexer = IndexerConfig(heads, size, chosen // pool, pool, config.norms.eps if last else 1e-6, turns_last=last)
    said = fields.get("indexer_types")
    if isinstance(said, list) and fields.of_gguf:  # one more for each module
        said = ["full" if each in (1, "full") else "shared" for each in said[: config.num_layers]]
        fields = fields.with_entries(indexer_types=said)
    types = fields.kinds("indexer_types", config.num_layers, ("full", "shared"))
    shares = shares if types is None else [each == "shared" for each in types]
    attending = [each.mixer == "latent" for each in config.layers]
    if any(attending) and shares[attending.index(True)]:
        raise fields.bad("indexer_types", types, "a list that begins with full")
    layers = tuple(
        replace(each, shares_choice=of and attends)
        for each, of, attends in zip(config.layers, shares, attending, strict=True)
    )
    return replace(config, family=name, latent=replace(config.latent, indexer=indexer), layers=layers)


def _deepseek_v32(fields: Fields) -> ModelConfig:
    config = _deepseek_v3(fields)
    return indexed(fields.with_entries(indexer_types=None), config, "deepseek_v32", [False] * config.num_layers, 64)


def _glm_dsa(fields: Fields) -> ModelConfig:
    """GLM-5: DeepSeek-V3.2 with defaults of its own."""
    sizes = {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "rms_norm_eps": 1e-5}
    config = _deepseek_v3(fields.with_defaults(sizes))
    return indexed(fields, config, "glm_moe_dsa", shared_choices(fields, config.num_layers))


def shared_choices(fields: Fields, layers: int) -> list[bool]:
    """As GLM-5's entries say it; files of GLM-5.2 that say nothing are known by their context, as in llama.cpp."""
    pattern = fields.get("index_topk_pattern")
    if isinstance(pattern, str) and len(pattern) == layers:
        return [each == "S" for each in pattern]
    later = fields.of_gguf and fields.integer("max_position_embeddings") >= 1 << 20
    every = fields.integer("index_topk_freq", 4 if later else 1)
    first = fields.integer("index_skip_topk_offset", 3 if later else 2, minimum=0)
    return [max(index - first + 1, 0) % every != 0 for index in range(layers)]


def _mistral4(fields: Fields) -> ModelConfig:
    fields.require("rope_interleave", True, default=True)
    config = latent_of(fields, 1024, 256, (64, 64, 128))
    if fields.within("rope_parameters") is None and fields.within("rope_scaling") is None:
        raise fields.missing("rope_parameters")
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=128)
    experts = replace(sigmoid_experts(fields, count, 4, "n_shared_experts"), score="softmax", correction=False)
    return with_experts(
        replace(config, attention=replace(config.attention, query_growth=query_growth(fields))),
        experts,
        first_dense(fields, config, 0),
    )


def _youtu(fields: Fields) -> ModelConfig:
    config = latent_of(fields, 1536, 512, (128, 64, 128), tied=True)
    fields.require("rope_interleave", True, default=True)
    return config


def _minicpm3(fields: Fields) -> ModelConfig:
    # Longer ones are read of GGUF files alone.
    rope = longrope_if_any(fields, fields.integer("qk_rope_head_dim")) if fields.of_gguf else None
    sizes = (64, 32, fields.integer("v_head_dim", 64))
    config = latent_of(fields, 768, 256, sizes, rope, tied=True, mlp=mlp_of(fields))
    of_all, depth = fields.number("scale_emb", 12), fields.number("scale_depth", 1.4)
    return _scaled(config, of_all, depth, fields.number("dim_model_base", 256))


def _scaled(config: ModelConfig, embedding: float, depth: float, base: float) -> ModelConfig:
    """MiniCPM's factors as ``granite`` has them: a layer's output times one is the stream divided by it."""
    config = replace(config, embedding=EmbeddingConfig(embedding), folded=FoldedConfig(config.hidden_size / base))
    return with_factor_of_layers(config, depth / config.num_layers**0.5)


def _turned_last(tensor: Tensor, size: int, dim: int) -> Tensor:
    """Rows head by head, the rotated ones last, in interleaved pairs -> the same in halves."""
    heads = tensor.reshape(-1, size, *tensor.shape[1:])
    turned = torch.stack([in_halves(head[size - dim :], dim, dim) for head in heads])
    return torch.cat((heads[:, : size - dim], turned), dim=1).reshape(tensor.shape)


def _turned_queries(tensor: Tensor, config: ModelConfig) -> Tensor:
    assert config.latent is not None
    return _turned_last(tensor, config.head_dim, config.latent.rope_dim)


def _turned_key(tensor: Tensor, config: ModelConfig) -> Tensor:
    assert config.latent is not None
    return _turned_last(tensor, len(tensor), config.latent.rope_dim)


LATENT_LAYER = without(HF_LAYER, "q", "k", "v", "q_norm", "k_norm") | {
    "q": "layers.{i}.self_attn.q_proj",
    "q_down": "layers.{i}.self_attn.q_a_proj",
    "q_norm": "layers.{i}.self_attn.q_a_layernorm",
    "q_up": "layers.{i}.self_attn.q_b_proj",
    "kv_down": "layers.{i}.self_attn.kv_a_proj_with_mqa",
    "kv_norm": "layers.{i}.self_attn.kv_a_layernorm",
    "kv_up": "layers.{i}.self_attn.kv_b_proj",
}
TURNED = {"q": _turned_queries, "q_up": _turned_queries, "kv_down": _turned_key}
_DENSE = replace(HF_LAYOUT, layer=LATENT_LAYER, convert=TURNED)
_MIXED = replace(
    EXPERTS_LAYOUT,
    layer={**EXPERTS_LAYOUT.layer, **LATENT_LAYER},
    convert=TURNED,
    without_bias=frozenset({"q", "index_key", "index_shares"}),
    beyond=True,
)
_STACKED_LAYOUT = replace(
    _MIXED,
    layer=without(dict(_MIXED.layer), "router_correction", "expert_gate") | STACKED,
    whole=WHOLE | STACKED.keys(),
)

GGUF_LATENT_LAYER = {
    "q": "blk.{i}.attn_q",
    "q_down": "blk.{i}.attn_q_a",
    "q_norm": "blk.{i}.attn_q_a_norm",
    "q_up": "blk.{i}.attn_q_b",
    "kv_down": "blk.{i}.attn_kv_a_mqa",
    "kv_norm": "blk.{i}.attn_kv_a_norm",
    "key_up": "blk.{i}.attn_k_b",
    "value_up": "blk.{i}.attn_v_b",
}
GGUF_LATENT = replace(
    GGUF_MIXED,
    layer=without(dict(GGUF_MIXED.layer), "q", "k", "v", "q_norm", "k_norm") | GGUF_LATENT_LAYER,
    convert=TURNED,
)
_GGUF_JOINT = replace(
    GGUF_LATENT,
    layer=without(dict(GGUF_LATENT.layer), "key_up", "value_up") | {"kv_up": "blk.{i}.attn_kv_b"},
    ignored=(*GGUF_LATENT.ignored, r"blk\.\d+\.attn_[kv]_b\.weight"),
)
"""Of files from before the matrix was taken apart; some have both forms."""
_SOFTMAX, _SIGMOID = 1, 2
"""``expert_gating_func``."""


def latent_entries(fields: Fields) -> dict[str, Any]:
    """Of files from before keys and values were taken apart, and later ones."""
    heads, turning = fields.integer("num_attention_heads"), fields.integer("rope.dimension_count", minimum=0)
    apart = "_mla" if fields.has("attention.key_length_mla") else ""
    both, value = (fields.integer(f"attention.{part}_length{apart}") for part in ("key", "value"))
    return {**_sizes(heads, both, turning, value), "topk_group": fields.get("topk_group") or fields.get("n_group")}


def _sizes(heads: int, both: int, turning: int, value: int) -> dict[str, int]:
    return {
        "num_key_value_heads": heads,
        "head_dim": both,
        "attention.value_length": both,
        "qk_nope_head_dim": both - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": value,
    }


def _minicpm3_entries(fields: Fields) -> dict[str, Any]:
    """Its factors are no entries, nor is the size of values."""
    heads = fields.integer("num_attention_heads")
    value = fields.integer("hidden_size") // heads
    return _sizes(heads, fields.integer("head_dim"), fields.integer("rope.dimension_count", value), value)


def _from_gguf(fields: Fields) -> ModelConfig:
    """One architecture for all, with experts or without (Youtu)."""
    gating = fields.integer("expert_gating_func", _SOFTMAX)
    if gating not in (_SOFTMAX, _SIGMOID):
        raise fields.unsupported("expert_gating_func", gating, f"{_SOFTMAX} or {_SIGMOID}, softmax or sigmoid")
    family = "deepseek_v3" if gating == _SIGMOID else "deepseek_v2"
    family += "" if fields.has("attention.key_length_mla") else "_joint"
    config = latent_of(fields, None, 512, (128, 64, 128), family=family)
    config = replace(config, attention=replace(config.attention, query_growth=query_growth(fields)))
    if not fields.integer("n_routed_experts", 0, minimum=0):
        return config
    experts = sigmoid_experts(fields, fields.integer("n_routed_experts"), 8, "n_shared_experts")
    if gating == _SOFTMAX:
        experts = replace(experts, score="softmax", correction=False, group_score="best")
    return with_experts(config, experts, first_dense(fields, config, 0))


def _indexed_from_gguf(fields: Fields, name: str) -> ModelConfig:
    config = _from_gguf(fields.with_defaults({"expert_gating_func": _SIGMOID}))
    shares = shared_choices(fields, config.num_layers) if name == "glm_moe_dsa" else [False] * config.num_layers
    return indexed(fields, config, name, shares)


def _turned_index(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Rows of an indexer's heads, some of them in interleaved pairs -> the same in halves."""
    assert config.latent is not None
    indexer, dim = config.latent.indexer, config.latent.rope_dim
    assert indexer is not None
    turned = _turned_last if indexer.turns_last else in_halves
    return turned(tensor, indexer.dim, dim)


_GGUF_DEFAULTS = {"norm_topk_prob": False, "n_shared_experts": 0}
INDEX_NAMES = {
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "indexer_types": "attention.indexer.types",
}
INDEXER = r"layers\.\d+\.self_attn\.indexer\..*"
_INDEX_ROLES = {"index_q": "wq_b", "index_key": "wk", "index_norm": "k_norm", "index_shares": "weights_proj"}
INDEX_LAYER = {role: f"layers.{{i}}.self_attn.indexer.{name}" for role, name in _INDEX_ROLES.items()}
TURNED_INDEX = dict.fromkeys(("index_q", "index_key", "index_norm"), _turned_index)
GGUF_INDEX = {"index_q": "attn_q_b", "index_key": "attn_k", "index_norm": "k_norm", "index_shares": "proj"}
_MIXED_INDEXED = replace(_MIXED, layer={**_MIXED.layer, **INDEX_LAYER}, ignored=(*_MIXED.ignored, INDEXER))
GGUF_INDEXED = replace(
    GGUF_LATENT,
    layer={**GGUF_LATENT.layer, **{role: f"blk.{{i}}.indexer.{name}" for role, name in GGUF_INDEX.items()}},
    ignored=(*GGUF_LATENT.ignored, r"blk\.\d+\.indexer\..*"),
)
_FROM_GGUF = Gguf("deepseek2", GGUF_LATENT, {}, _GGUF_DEFAULTS, latent_entries, _from_gguf)

FAMILIES = (
    Family("deepseek_v2", _deepseek_v2, _MIXED, _FROM_GGUF, "experts"),
    Family("deepseek_v3", _deepseek_v3, _MIXED, _FROM_GGUF, "experts"),
    *(
        Family(
            name,
            read,
            replace(_MIXED_INDEXED, convert=convert),
            replace(
                _FROM_GGUF,
                architecture=architecture,
                layout=replace(GGUF_INDEXED, convert=convert),
                names=INDEX_NAMES,
                read=partial(_indexed_from_gguf, name=name),
            ),
            "experts",
        )
        for name, architecture, read, convert in (
            ("deepseek_v32", "deepseek32", _deepseek_v32, TURNED),
            ("glm_moe_dsa", "glm-dsa", _glm_dsa, TURNED | TURNED_INDEX),
        )
    ),
    Family("glm4_moe_lite", _glm_lite, _MIXED, kind="experts"),
    Family("kimi_k2", _deepseek_v3, _MIXED, kind="experts"),
    Family("mistral4", _mistral4, _STACKED_LAYOUT, replace(_FROM_GGUF, architecture="mistral4"), "experts"),
    Family("deepseek_v2_joint", _deepseek_v2, _MIXED, Gguf("", _GGUF_JOINT), "experts", ""),
    Family("deepseek_v3_joint", _deepseek_v3, _MIXED, Gguf("", _GGUF_JOINT), "experts", ""),
    Family("deepseek_v3_halves", _deepseek_v3, replace(_MIXED, convert={}), None, "experts", ""),
    Family("youtu", _youtu, _DENSE),
    Family(
        "minicpm3",
        _minicpm3,
        replace(_DENSE, convert={"final_norm": divided}),
        Gguf(
            "minicpm3",
            replace(_GGUF_JOINT, convert={"final_norm": divided}, **GGUF_LONGROPE),
            computed=_minicpm3_entries,
        ),
    ),
)
