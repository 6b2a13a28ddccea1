"""DeepSeek-V4: a window and compressed keys, several streams, experts by token in the first layers.

Sources: the configuration and modelling files of transformers (models/deepseek_v4) and its table of names; for GGUF
llama.cpp's converter and model (deepseek4.cpp).
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.compressed_config import CompressedConfig, Compression
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf, TensorLayout
from headstart.models.families.experts import swiglu_limits, used_of
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_MIXED
from headstart.models.families.kimi import GGUF_HYPER, hyper_roles
from headstart.models.families.llama import base_of
from headstart.models.families.rope import rope_of
from headstart.models.streams_config import HyperConfig

_WINDOW, _INDEXED, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_KINDS = {0: _WINDOW, 4: _INDEXED, 128: _HEAVY}
_BY_TOKEN = "hash_moe"
_MOST_RATIO = 1 << 12


def _deepseek_v4(fields: Fields) -> ModelConfig:
    size = fields.integer("moe_intermediate_size", 2048)
    fields = fields.with_defaults({"intermediate_size": size, "head_dim": 512, "num_key_value_heads": 1})
    fields.require("num_key_value_heads", 1, default=1)
    fields.require("attention_bias", False, default=False)
    fields.require("mlp_bias", False, default=False)
    config = base_of(fields, "deepseek_v4", False, ropes=_ropes(fields))
    groups = fields.integer("o_groups", 8, maximum=config.num_heads)
    if config.num_heads % groups:
        raise fields.bad("o_groups", groups, f"a divisor of {config.num_heads} heads")
    streams, rounds = fields.integer("hc_mult", 4, maximum=8), fields.integer("hc_sinkhorn_iters", 20, maximum=1000)
    hyper = HyperConfig(streams, rounds, fields.number("hc_eps", 1e-6), merges=True)
    compressed = CompressedConfig(
        fields.integer("q_lora_rank", 1024),
        groups,
        fields.integer("o_lora_rank", 1024),
        fields.integer("index_n_heads", 64),
        fields.integer("index_head_dim", 128, minimum=config.ropes[0].dim),
    )
    count = fields.integer("n_routed_experts", 256)
    fields.require("scoring_func", "sqrtsoftplus", default="sqrtsoftplus")
    fields.require("expert_gating_func", _SQRT_SOFTPLUS, default=_SQRT_SOFTPLUS)
    experts = ExpertsConfig(
        count,
        used_of(fields, count, 6),
        size,
        shared_size=size * fields.integer("n_shared_experts", 1),
        score="sqrtsoftplus",
        correction=True,
        normalised=True,
        scale=fields.number("routed_scaling_factor", 1.5),
    )
    return replace(
        config,
        compressed=compressed,
        experts=experts,
        layers=_layers(fields, config.num_layers),
        residual=replace(config.residual, hyper=hyper),
    )


def _layers(fields: Fields, count: int) -> tuple[LayerConfig, ...]:
    rates = fields.within("compress_rates") or Fields({}, fields.source)
    ratios = {kind: rates.integer(kind, ratio, maximum=_MOST_RATIO) for ratio, kind in _KINDS.items() if ratio}
    chosen = fields.integer("index_topk", 512, maximum=MAX_POSITIONS)
    made = {_WINDOW: None, _INDEXED: Compression(ratios[_INDEXED], chosen), _HEAVY: Compression(ratios[_HEAVY])}
    kinds = fields.kinds("layer_types", count, tuple(made))
    if kinds is None:
        given = fields.get("compress_ratios")
        given = [4 if index > 1 and index % 2 else 128 for index in range(count)] if given is None else given
        if not isinstance(given, list) or len(given) < count or not all(each in (0, 4, 128) for each in given):
            raise fields.bad("compress_ratios", given, f"{count} entries, each 0, 4 or 128")
        kinds = [_KINDS[each] for each in given[:count]]
    first = fields.integer("num_hash_layers", 3, minimum=0)
    by_token = fields.kinds("mlp_layer_types", count, (_BY_TOKEN, "moe"))
    by_token = [_BY_TOKEN if index < first else "moe" for index in range(count)] if by_token is None else by_token
    layer = LayerConfig(fields.integer("sliding_window", 128), 1, "compressed", "experts", limits_raw=True)
    return tuple(
        replace(
            layer,
            rope=0 if kind == _WINDOW else 1,
            mlp_limit=limit or None,
            expert_limit=limit or None,
            by_token=chosen_by == _BY_TOKEN,
            compression=made[kind],
        )
        for kind, chosen_by, limit in zip(kinds, by_token, swiglu_limits(fields, count, 10.0), strict=True)
    )


def _ropes(fields: Fields) -> tuple[RopeConfig, RopeConfig]:
    """Of layers that see their window alone, and of the others, whose scaled rotation is not grown."""
    size = fields.integer("head_dim")
    share = fields.optional_number("partial_rotary_factor")
    dim = fields.integer("qk_rope_head_dim", size // 8) if share is None else int(size * share)
    theta, of_others = fields.number("rope_theta", 10_000.0), fields.number("compress_rope_theta", 160_000.0)
    parameters = fields.within("rope_parameters")
    said = fields.within("rope_scaling") or parameters
    if parameters is not None and parameters.within("compress") is not None:
        main, said = parameters.within("main") or Fields({}, fields.source), parameters.within("compress")
        main.require("rope_type", "default", default="default")
        theta, of_others = (of.number("rope_theta", known) for of, known in ((main, theta), (said or main, of_others)))
    entries = {} if said is None else {**said.entries, "rope_theta": of_others}
    others = fields.with_entries(rope_scaling=None, rope_parameters=entries, rope_theta=of_others)
    scaled = rope_of(others, dim, whole_heads=False)
    grown = 1.0 if said is None else said.number("attention_factor", 1.0)
    scaling = None if scaled.scaling is None else scaled.scaling | {"attention_factor": grown}
    return RopeConfig(theta, dim), replace(scaled, scaling=scaling)


_ATTENTION = {
    "q_down": ("wq_a", "attn_q_a"),
    "q_norm": ("q_norm", "attn_q_a_norm"),
    "q_up": ("wq_b", "attn_q_b"),
    "kv": ("wkv", "attn_kv"),
    "kv_norm": ("kv_norm", "attn_kv_a_norm"),
    "output_down": ("wo_a", "attn_output_a"),
    "output": ("wo_b", "attn_output_b"),
    "sinks": ("attn_sink", "attn_sinks"),
    "index_q": ("indexer.wq_b", "indexer.attn_q_b"),
    "index_shares": ("indexer.weights_proj", "indexer.proj"),
    **{
        f"{of}_{part}": (f"{before}compressor.{name}", f"{after}_compressor_{name.removeprefix('w')}")
        for of, before, after in (("compressor", "", "attn"), ("index_compressor", "indexer.", "indexer"))
        for part, name in (("kv", "wkv"), ("gate", "wgate"), ("places", "ape"), ("norm", "norm"))
    },
}
"""In folders, and in GGUF files."""
_CHANNEL = {
    "router": "gate",
    "router_correction": "gate.bias",
    "expert_table": "gate.tid2eid",
    **{f"expert_{part}": f"experts.{{e}}.w{number}" for part, number in (("gate", 1), ("up", 3), ("down", 2))},
    **{f"shared_{part}": f"shared_experts.w{number}" for part, number in (("gate", 1), ("up", 3), ("down", 2))},
}
_HYPER = hyper_roles("layers.{i}.hc_", mixer="attn", channel="ffn") | hyper_roles("hc_", end="head")
_HF = TensorLayout(
    embedding="embed",
    final_norm="norm",
    head="head",
    layer={
        "attention_norm": "layers.{i}.attn_norm",
        "mlp_norm": "layers.{i}.ffn_norm",
        **{role: f"layers.{{i}}.attn.{name}" for role, (name, _) in _ATTENTION.items()},
        **{role: f"layers.{{i}}.ffn.{name}" for role, name in _CHANNEL.items()},
        **_HYPER,
    },
    whole=WHOLE | _HYPER.keys() | {"sinks", "expert_table", "compressor_places", "index_compressor_places"},
)
# As transformers saves it.
_SAVED = replace(
    _HF,
    prefix="model.",
    embedding="embed_tokens",
    spellings={"kv_norm": "layers.{i}.attn.norm", **hyper_roles("hc_head.", end="hc")},
)

_GGUF = replace(
    GGUF_MIXED,
    layer={
        **GGUF_MIXED.layer,
        **{role: f"blk.{{i}}.{name}" for role, (_, name) in _ATTENTION.items()},
        "expert_table": "blk.{i}.ffn_gate_tid2eid",
        **GGUF_HYPER,
        **hyper_roles("output_", end="hc"),
    },
)
_NAMES = {
    "qk_rope_head_dim": "rope.dimension_count",
    "compress_rope_theta": "attention.compress_rope_freq_base",
    "compress_ratios": "attention.compress_ratios",
    "o_lora_rank": "attention.output_lora_rank",
    "o_groups": "attention.output_group_count",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "num_hash_layers": "hash_layer_count",
    "swiglu_limit": "swiglu_clamp_exp",
    "hc_mult": "hyper_connection.count",
    "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
    "hc_eps": "hyper_connection.epsilon",
}
_SQRT_SOFTPLUS = 4

FAMILIES = (
    Family(
        "deepseek_v4",
        _deepseek_v4,
        replace(_SAVED, other=_HF),
        Gguf("deepseek4", _GGUF, _NAMES, {"swiglu_limit": 0.0}),
        "experts",
    ),
)
