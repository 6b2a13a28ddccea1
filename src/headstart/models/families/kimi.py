"""Kimi Delta Attention beside latent attention: Kimi Linear, Ling and Ring 3, and GLM-5.3 with several streams.

Sources: the configuration and modelling files of transformers (models/kimi_linear, bailing_hybrid, glm5_next); for what
else released files of Ling have, and for GGUF, llama.cpp's converter and models (kimi-linear.cpp, bailingmoe3.cpp,
glm5-next.cpp).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.families.base import WHOLE, Family, Gguf
from headstart.models.families.deepseek import (
    GGUF_INDEX,
    GGUF_LATENT,
    INDEX_LAYER,
    INDEX_NAMES,
    INDEXER,
    LATENT_LAYER,
    TURNED,
    indexed,
    latent_entries,
    latent_of,
    shared_choices,
)
from headstart.models.families.experts import (
    BY_EXPERT,
    EXPERTS_LAYOUT,
    IN_BLOCK,
    count_of,
    first_dense,
    layout_with,
    shared,
    sigmoid_experts,
    swiglu_limits,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import STATES, by_layer, chosen_by_sigmoid
from headstart.models.state_config import DeltaConfig
from headstart.models.streams_config import HyperConfig

_KINDS = ("linear_attention", "full_attention")
_NAMES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
"""What transformers writes; released files of Ling have the others' names."""


def _named(fields: Fields) -> Fields:
    return fields.called({key: name for key, name in _NAMES.items() if fields.get(name) is not None})


def _delta(fields: Fields, head_dim: int, rank: bool, least: float) -> DeltaConfig:
    """``head_dim``: the default; ``rank``: whether gates and steps are made of as many numbers."""
    heads = fields.integer("linear_num_heads", fields.integer("num_attention_heads"))
    size = fields.integer("linear_head_dim", head_dim)
    length = fields.integer("linear_conv_kernel_dim", 4, minimum=2)
    eps = fields.number("rms_norm_eps", 1e-6)
    return DeltaConfig(heads, heads, size, size, length, eps, by_key=True, rank=size if rank else None, least=least)


def _mixed(config: ModelConfig, delta: DeltaConfig, attending: list[bool]) -> ModelConfig:
    """The model with the delta rule in all layers but those that are ``attending``."""
    linear = LayerConfig(rope=None, mixer="delta")
    layers = (layer if attends else linear for layer, attends in zip(config.layers, attending, strict=True))
    return replace(config, delta=delta, layers=tuple(layers))


def _attending(fields: Fields, config: ModelConfig, group: int, tail: bool) -> list[bool]:
    """Which layers attend; without an entry the last one of each ``group``, and with ``tail`` those behind the last
    whole one."""
    kinds = fields.kinds("layer_types", config.num_layers, (*_KINDS, "indexed_attention"))
    if kinds is not None:
        return [kind != _KINDS[0] for kind in kinds]
    whole = config.num_layers // group * group
    return [(index + 1) % group == 0 or (tail and index >= whole) for index in range(config.num_layers)]


def _kimi_linear(fields: Fields) -> ModelConfig:
    fields = _named(fields).with_defaults({"rms_norm_eps": 1e-5})
    fields.require("mla_use_nope", True, default=True)
    fields.require("moe_router_activation_func", "sigmoid", default="sigmoid")
    config = latent_of(fields, None, 512, (128, 64, 128), rotated=False)
    fields, linear = _with_linear(fields)
    if fields.get("layer_types") is None:
        if linear is None:
            raise fields.missing("linear_attn_config")
        full = {number - 1 for number in linear.layers("full_attn_layers")}  # counted from 1
        fields = fields.with_entries(layer_types=[_KINDS[index in full] for index in range(config.num_layers)])
    config = _mixed(config, _delta(fields, 128, True, 0.0), _attending(fields, config, 4, False))
    count = count_of(fields, "num_experts", "num_local_experts", default=256)
    experts = sigmoid_experts(fields, count, 8, "n_shared_experts", 2.446)
    return with_experts(config, experts, first_dense(fields, config, 1))


def _with_linear(fields: Fields) -> tuple[Fields, Fields | None]:
    """With the sizes that released files have in an entry of their own, and that."""
    linear = fields.within("linear_attn_config")
    if linear is None:
        return fields, None
    names = ("head_dim", "num_heads", "short_conv_kernel_size", "gate_lower_bound")
    ours = ("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "linear_lower_bound")
    said = {to: linear.get(name) for name, to in zip(names, ours, strict=True) if linear.get(name) is not None}
    return fields.with_entries(**said), linear


def _glm5_next(fields: Fields) -> ModelConfig:
    fields = fields if fields.get("text_config") is None else fields.text_config()
    fields = _with_linear(fields.with_defaults({"rms_norm_eps": 1e-5, "qk_rope_head_dim": 0}))[0]
    fields.require("qk_rope_head_dim", 0, default=0)
    fields = fields if fields.of_gguf else fields.with_entries(head_dim=None)
    fields.require("index_kpool_always_select_tail", True, default=True)
    fields.require("hidden_act", "silu", default="silu")
    config = latent_of(fields, 1536, 512, (256, 0, 256), rotated=False)
    assert config.latent is not None
    config = replace(config, latent=replace(config.latent, norm_eps=config.norms.eps))
    delta = _delta(fields, 128, True, _least(fields, "linear_lower_bound", fields.of_gguf))
    config = _mixed(config, delta, _attending(fields, config, 4, False))
    pool = fields.integer("index_kpool", 4 if fields.of_gguf else 16, maximum=MAX_POSITIONS)
    shares = [False] * config.num_layers if fields.of_gguf else shared_choices(fields, config.num_layers)
    config = indexed(fields, config, config.family, shares, pool=pool)
    layers = (
        replace(layer, mlp_limit=limit or None, expert_limit=limit or None, limits_raw=True)
        for layer, limit in zip(config.layers, swiglu_limits(fields, config.num_layers, 10.0), strict=True)
    )
    rounds = fields.integer("hc_sinkhorn_iters", 20, maximum=1000)
    hyper = HyperConfig(fields.integer("hc_mult", 4, maximum=8), rounds, fields.number("hc_eps", 1e-6))
    config = replace(config, layers=tuple(layers), residual=replace(config.residual, hyper=hyper))
    experts = sigmoid_experts(fields, count_of(fields, "n_routed_experts", default=288), 8, "n_shared_experts", 2.5)
    return with_experts(config, experts, first_dense(fields, config, 3))


def _least(fields: Fields, key: str, may_lack: bool) -> float:
    """The bound of decays' logarithms; 0: there is none."""
    bound = fields.get(key)
    if bound is None:
        return 0.0 if may_lack or fields.has(key) else -5.0
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not -1e3 < bound <= 0:
        raise fields.bad(key, bound, "a number below 0")
    return float(bound)


def _ling(fields: Fields) -> ModelConfig:
    fields = _named(fields)
    fields.require("no_kda_lora", True, default=True)
    fields.require("gated_attention_proj_granularity_type", "head_wise", default="head_wise")
    for key in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
        if any(fields.get(key) or ()):
            raise fields.unsupported(key, fields.get(key), "null: experts without limits")
    config = latent_of(fields, None, 512, (128, 64, 128))
    config = replace(config, attention=replace(config.attention, gate="head"))
    least = _least(fields, "kda_lower_bound", False) if fields.flag("kda_safe_gate", True) else 0.0
    delta = _delta(fields, fields.integer("head_dim", 128), False, least)
    config = _mixed(config, delta, _attending(fields, config, fields.integer("layer_group_size", 6), True))
    count = count_of(fields, "num_experts", "num_local_experts", default=512)
    experts = sigmoid_experts(fields, count, 8, "n_shared_experts", 2.5)
    whole = fields.integer("expert_shared_feed_forward_length", experts.shared_size)  # of GGUF files
    size = fields.integer("moe_shared_expert_intermediate_size", experts.size)
    experts = replace(experts, shared_size=whole // experts.size * size if size != experts.size else whole)
    return with_experts(config, experts, first_dense(fields, config, 2))


_ENDS = {"": "proj", "_kernel": "conv1d"}


def _heads(*shape: int) -> Any:
    """The shape of a vector of heads, which stand where ``shape`` has -1."""

    def found(config: ModelConfig) -> tuple[int, ...]:
        assert config.delta is not None
        return tuple(config.delta.key_heads if size < 0 else size for size in shape)

    return found


def _parts(attention: str) -> dict[str, str]:
    """Names of the delta rule's parts in a layer."""
    of = f"layers.{{i}}.{attention}."
    heads = {f"delta_{part}{end}": f"{of}{part}_{name}" for part in "qkv" for end, name in _ENDS.items()}
    others = {"delta_share": "b_proj", "state_norm": "o_norm", "delta_output": "o_proj"}
    others |= {"step_bias": "dt_bias", "log_decay": "A_log"}
    return heads | {role: of + name for role, name in others.items()}


_LOW_RANK = {
    f"delta_{role}": f"layers.{{i}}.self_attn.{part}_proj"
    for role, part in (("gate", "g_a"), ("step", "f_a"), ("gate_up", "g_b"), ("step_up", "f_b"))
}
_MLP = {part: f"layers.{{i}}.block_sparse_moe.{part}_proj" for part in ("gate", "up", "down")}
_SHARED = {f"shared_{part}": f"layers.{{i}}.block_sparse_moe.shared_experts.{part}_proj" for part in _MLP}
_KIMI = layout_with(
    IN_BLOCK
    | {"router_correction": "layers.{i}.block_sparse_moe.gate.e_score_correction_bias"}
    | _SHARED
    | _parts("self_attn")
    | _LOW_RANK,
    layer=LATENT_LAYER,
    folded={"log_decay": _heads(1, 1, -1, 1)},
    without_bias=frozenset({"q"}),
    # As transformers saves them.
    spellings=_MLP,
)
_LING = layout_with(
    BY_EXPERT
    | shared("shared_experts")
    | {"router_correction": "layers.{i}.mlp.gate.expert_bias"}
    | _parts("attention")
    | {"output": "layers.{i}.attention.dense", "attention_gate": "layers.{i}.attention.g_proj"}
    | {"delta_gate": "layers.{i}.attention.g_proj", "delta_step": "layers.{i}.attention.f_proj"},
    layer={role: name.replace("self_attn", "attention") for role, name in LATENT_LAYER.items()},
    embedding="word_embeddings",
    convert=TURNED,
    without_bias=frozenset({"q"}),
    beyond=True,
    spellings={"delta_output": "layers.{i}.attention.dense"},
)


def hyper_roles(before: str, **parts: str) -> dict[str, str]:
    """Of what connects layers to streams: what names begin with, and how those of each part go on."""
    kinds = {"mix": "fn", "base": "base", "scale": "scale"}
    return {f"{part}_{role}": f"{before}{name}_{kind}" for part, name in parts.items() for role, kind in kinds.items()}


_HYPER = hyper_roles("layers.{i}.hc_", mixer="attn", channel="ffn")
GGUF_HYPER = hyper_roles("blk.{i}.hc_", mixer="attn", channel="ffn")
_POOLED = {
    f"index_{role}": f"layers.{{i}}.self_attn.indexer.index_kpool_compress_{name}"
    for role, name in (("gate", "gate"), ("places", "ape"))
}
_GLM_TEXT = layout_with(
    _parts("self_attn") | _LOW_RANK | _HYPER,
    EXPERTS_LAYOUT,
    {**EXPERTS_LAYOUT.layer, **LATENT_LAYER, **INDEX_LAYER, **_POOLED},
    whole=WHOLE | _HYPER.keys() | _POOLED.keys(),
    beyond=True,
    ignored=(*EXPERTS_LAYOUT.ignored, r"(model\.)?visual\..*", INDEXER),
)
_GLM = replace(_GLM_TEXT, prefix="model.language_model.", other=_GLM_TEXT)

_GGUF_PARTS = {
    **{f"delta_{part}": f"blk.{{i}}.attn_{part}" for part in "qkv"},
    **{f"delta_{part}_kernel": f"blk.{{i}}.ssm_conv1d_{part}" for part in "qkv"},
    "delta_share": "blk.{i}.ssm_beta",
    "delta_output": "blk.{i}.attn_output",
    "delta_gate": "blk.{i}.ssm_g_a",
    "delta_step": "blk.{i}.ssm_f_a",
    "delta_gate_up": "blk.{i}.ssm_g_b",
    "delta_step_up": "blk.{i}.ssm_f_b",
}
_GGUF_KIMI = replace(
    GGUF_LATENT, layer={**GGUF_LATENT.layer, **_GGUF_PARTS}, folded={"log_decay": _heads(-1, 1)}, convert=STATES
)


def _logarithm(decay: Tensor, _: ModelConfig) -> Tensor:
    """Ling's are stored as they are, above 0."""
    return decay.log()


_GGUF_GLM = replace(
    _GGUF_KIMI,
    layer={
        **_GGUF_KIMI.layer,
        **GGUF_HYPER,
        **{role: f"blk.{{i}}.indexer.{name}" for role, name in GGUF_INDEX.items()},
        "index_gate": "blk.{i}.indexer_compressor_gate",
        "index_places": "blk.{i}.indexer_compressor_ape",
    },
    folded={},
    ignored=(*_GGUF_KIMI.ignored, r"blk\.\d+\.indexer.*"),
)
_GGUF_LING = replace(_GGUF_KIMI, convert={**TURNED, "log_decay": _logarithm})
_GGUF_NAMES = {
    "linear_head_dim": "kda.head_dim",
    "kda_lower_bound": "kda.gate_lower_bound",
    "kda_safe_gate": "kda.safe_gate",
    "expert_swiglu_limit_list": "swiglu_clamp_exp",
    "share_expert_swiglu_limit_list": "swiglu_clamp_shexp",
    "linear_lower_bound": "kda.gate_lower_bound",
    "swiglu_limit": "swiglu_clamp_exp",
    **INDEX_NAMES,
    "index_kpool": "attention.indexer.kpool",
    "index_kpool_always_select_tail": "attention.indexer.kpool_select_tail",
    "hc_mult": "hyper_connection.count",
    "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
    "hc_eps": "hyper_connection.epsilon",
}


def _entries(fields: Fields) -> dict[str, Any]:
    """Layers that have no heads of keys have the delta rule."""
    kinds = [_KINDS[attends] for attends in by_layer(fields, "num_key_value_heads")[1]]
    return {**chosen_by_sigmoid(fields), **latent_entries(fields), "layer_types": kinds}


_PLAIN = {"norm_topk_prob": True, "routed_scaling_factor": 1.0}

FAMILIES = tuple(
    Family(name, read, layout, Gguf(architecture, in_gguf, _GGUF_NAMES, _PLAIN, _entries), "experts")
    for name, read, layout, architecture, in_gguf in (
        ("kimi_linear", _kimi_linear, _KIMI, "kimi-linear", _GGUF_KIMI),
        ("bailing_hybrid", _ling, _LING, "bailingmoe3", _GGUF_LING),
        ("glm5_next", _glm5_next, _GLM, "glm5-next", _GGUF_GLM),
        ("glm5_next_text", _glm5_next, _GLM, "glm5-next", _GGUF_GLM),
    )
)
