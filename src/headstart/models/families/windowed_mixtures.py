"""Mixtures whose layers with windows have heads and a rotation of their own: MiMo-V2 and Step 3.5.

Sources: the configuration and modelling files of transformers (models/mimo_v2_flash, step3p7), and for the entries of
the descriptions as they were released those of vLLM 0.33 (mimo_v2_flash, step3p5); for GGUF llama.cpp's converter and
models (conversion/mimo.py, step3.py, src/models/mimo2.cpp, step35.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headstart.models.config import AttentionConfig, HeadNorms, LayerConfig, ModelConfig, NormsConfig, RopeConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf
from headstart.models.families.experts import (
    EXPERTS_LAYOUT,
    count_of,
    first_dense,
    layout_with,
    sigmoid_experts,
    used_of,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_MIXED, by_sight, chosen_by_sigmoid
from headstart.models.families.llama import base_of
from headstart.models.families.rope import rope_of

_FULL, _SLIDING = _KINDS = ("full_attention", "sliding_attention")


def _ropes(fields: Fields, head_dim: int, older: Mapping[str, Mapping[str, Any]]) -> tuple[RopeConfig, ...]:
    """Of layers that see everything, and of those with windows; ``older``: what they are where no ``rope_parameters``
    of a kind say it."""
    if fields.of_gguf:
        dims = [fields.integer(f"rope_dim_of_{kind}") for kind in _KINDS]
        return tuple(
            rope_of(fields, dim, layer_type=kind, whole_heads=False) for kind, dim in zip(_KINDS, dims, strict=True)
        )
    given = fields.within("rope_parameters")
    told = {kind: (None if given is None else given.get(kind)) or dict(older[kind]) for kind in _KINDS}
    fields = fields.with_entries(rope_parameters=told, rope_scaling=None, rope_theta=None)
    ropes, all_of_them = [], fields.within("rope_parameters")
    assert all_of_them is not None
    for kind in _KINDS:
        own = all_of_them.within(kind)
        assert own is not None
        share = own.number("partial_rotary_factor", older[kind]["partial_rotary_factor"])
        dim = int(head_dim * share)
        ropes.append(rope_of(fields, dim, layer_type=kind, whole_heads=False))
    return tuple(ropes)


def _listed(fields: Fields, key: str, at_least: int) -> list[Any]:
    """An entry for each layer, and perhaps for those of modules behind them; absent: none."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or (value and len(value) < at_least):
        raise fields.bad(key, value, f"a list of {at_least} or more")
    return value


def _mimo_v2(fields: Fields) -> ModelConfig:
    for key in ("num_attention_heads", "head_dim", "v_head_dim"):
        fields.require(f"swa_{key}", fields.get(key), default=fields.get(key))
    fields.require("scoring_func", "sigmoid", default="sigmoid")
    fields.require("n_shared_experts", 0, default=0)
    heads, head_dim = fields.integer("num_attention_heads"), fields.integer("head_dim", 192)
    kv_heads = fields.integer("num_key_value_heads", heads)
    scale = fields.optional_number("attention_value_scale")
    if scale is None:
        scale = 1.0 if fields.of_gguf or fields.has("attention_value_scale") else 0.707
    theta, share = fields.number("rope_theta", 5e6), fields.number("partial_rotary_factor", 0.334)
    older = {
        kind: {"rope_theta": base, "partial_rotary_factor": share}
        for kind, base in ((_FULL, theta), (_SLIDING, fields.number("swa_rope_theta", 1e4)))
    }
    told = fields.of_gguf or fields.get("rms_norm_eps") is not None
    config = base_of(
        fields,
        default_head_dim=192,
        eps="rms_norm_eps" if told else "layernorm_epsilon",
        default_eps=1e-5,
        ropes=_ropes(fields, head_dim, older),
        attention=AttentionConfig(
            qkv_bias=fields.flag("attention_bias", False),
            sinks=True,
            value_dim=fields.integer("v_head_dim", 128),
            value_scale=scale,
        ),
    )
    window = fields.optional_integer("sliding_window_size", maximum=MAX_POSITIONS)
    # That one counts what a row sees before its own.
    window = fields.integer("sliding_window", 129, maximum=MAX_POSITIONS) if window is None else window + 1
    others = LayerConfig(
        window,
        rope=1,
        num_kv_heads=fields.integer("swa_num_key_value_heads", 2 * kv_heads),
        sinks=fields.flag("add_swa_attention_sink_bias", True),
    )
    full = LayerConfig(sinks=fields.flag("add_full_attention_sink_bias", False))
    count = config.num_layers
    sliding = _listed(fields, "hybrid_layer_pattern", count) or [i > 0 and (i + 1) % 6 > 0 for i in range(count)]
    kinds = fields.kinds("layer_types", count, _KINDS) or [_KINDS[bool(each)] for each in sliding[:count]]
    config = replace(config, layers=tuple(others if kind == _SLIDING else full for kind in kinds))
    experts_in = _listed(fields, "moe_layer_freq", count)
    dense = {i for i in range(count) if not experts_in[i]} if experts_in else first_dense(fields, config, 1)
    number = count_of(fields, "n_routed_experts", "num_local_experts", default=256)
    experts = sigmoid_experts(fields, number, 8, "n_shared_experts")
    return with_experts(config, replace(experts, shared_size=0), dense)


def _mimo_v2_entries(fields: Fields) -> dict[str, Any]:
    kv_heads, others = by_sight(fields, "num_key_value_heads")
    head_dim = fields.integer("head_dim")
    return {
        "num_key_value_heads": kv_heads,
        "swa_num_key_value_heads": others,
        "v_head_dim": fields.integer("attention.value_length", head_dim),
        "attention.value_length": head_dim,
        **{f"rope_dim_of_{kind}": fields.integer("rope.dimension_count", head_dim) for kind in _KINDS},
        **chosen_by_sigmoid(fields),
    }


_OLD_NAMES = {
    "num_key_value_heads": "num_attention_groups",
    "num_experts_per_tok": "moe_top_k",
    "share_expert_dim": "share_expert_dims",
}
"""Entries of Step's descriptions -> what they are called in released ones."""


def _step(fields: Fields) -> ModelConfig:
    fields.require("sink", False, default=False)
    fields.require("moe_router_activation", "sigmoid", default="sigmoid")
    fields.require("use_moe_router_bias", True, default=True)
    fields = fields.called({new: old for new, old in _OLD_NAMES.items() if fields.get(old) is not None})
    count = fields.integer("num_hidden_layers", maximum=4096)
    listed = _listed(fields, "layer_types", count) or [_FULL] * count
    fields = fields.with_entries(layer_types=listed[:count])
    kinds = fields.kinds("layer_types", count, _KINDS) or []
    of_modules = _listed(fields, "mtp_layer_types", 0) or listed[count:]
    heads, head_dim = fields.integer("num_attention_heads"), fields.integer("head_dim", 128)
    theta, scaling = fields.get("rope_theta"), fields.within("rope_scaling")
    thetas = _listed(fields, "rope_theta", count) if isinstance(theta, list) else [theta or 10_000.0] * count
    shares = _listed(fields, "partial_rotary_factors", count) or [1.0] * count
    first = {kind: kinds.index(kind) if kind in kinds else 0 for kind in _KINDS}
    older: dict[str, dict[str, Any]] = {
        kind: {"rope_theta": thetas[at], "partial_rotary_factor": shares[at]} for kind, at in first.items()
    }
    older[_FULL] |= {} if scaling is None else scaling.entries
    config = base_of(
        fields,
        default_head_dim=128,
        default_eps=1e-5,
        ropes=_ropes(fields, head_dim, older),
        # GGUF files have it added to the weights.
        norms=NormsConfig(offset=0.0 if fields.of_gguf else 1.0),
        attention=AttentionConfig(
            scale=fields.number("query_pre_attn_scalar", head_dim) ** -0.5,
            qk_norm=HeadNorms(),
            qkv_bias=fields.flag("attention_bias", False),
            output_bias=fields.flag("attention_bias", False),
            gate="head" if fields.flag("use_head_wise_attn_gate", True) else None,
        ),
    )
    other = fields.within("attention_other_setting") or Fields({}, fields.source)
    other.require("head_dim", head_dim, default=head_dim)
    sliding = LayerConfig(
        rope=1,
        num_heads=fields.integer("num_sliding_attention_heads", other.integer("num_attention_heads", heads)),
        num_kv_heads=other.integer("num_attention_groups", fields.integer("num_sliding_kv_heads", config.num_kv_heads)),
    )
    if _SLIDING in (*kinds, *of_modules):
        sliding = replace(sliding, window=fields.integer("sliding_window", maximum=MAX_POSITIONS))
    of_kinds = {_FULL: LayerConfig(), _SLIDING: sliding}
    limits, of_mlps = (_limits(fields, key, count) for key in ("swiglu_limits", "swiglu_limits_shared"))
    rotated = _listed(fields, "use_rope_layers", count) or [True] * count
    layers = (
        replace(
            of_kinds[kind],
            rope=of_kinds[kind].rope if rotated[index] else None,
            expert_limit=limits[index],
            mlp_limit=of_mlps[index],
        )
        for index, kind in enumerate(kinds)
    )
    config = replace(config, layers=tuple(layers), module_layers=_modules_of(fields, of_modules, of_kinds))
    number = count_of(fields, "n_routed_experts", "moe_num_experts", "num_local_experts", default=288)
    experts = ExpertsConfig(
        number,
        used_of(fields, number, 8),
        fields.integer("moe_intermediate_size", 1280),
        shared_size=fields.integer("share_expert_dim", 1280),
        score="sigmoid",
        correction=True,
        normalised=fields.flag("norm_expert_weight", True),
        scale=fields.number("moe_router_scaling_factor", 1.0),
    )
    return with_experts(config, experts, _dense(fields, config))


def _modules_of(fields: Fields, kinds: Sequence[Any], of_kinds: Mapping[str, LayerConfig]) -> tuple[LayerConfig, ...]:
    """Layers of modules by their kinds of attention."""
    if any(kind not in _KINDS for kind in kinds):
        raise fields.bad("layer_types", fields.get("layer_types"), f"each {' or '.join(_KINDS)}")
    return tuple(of_kinds[kind] for kind in kinds)


def _limits(fields: Fields, key: str, count: int) -> list[float | None]:
    """[layer] of an entry in which null and 0 mean that there is none."""
    values = _listed(fields, key, count) or [None] * count
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise fields.bad(key, values, "a list of numbers of 0 or more, or null")
    return [float(value) if value else None for value in values[:count]]


def _dense(fields: Fields, config: ModelConfig) -> set[int]:
    """Layers without experts: those that are not listed among the others, or the first few."""
    listed = fields.get("moe_layers_enum")
    if fields.get("mlp_layer_types") is not None or listed is None:
        kinds = _listed(fields, "mlp_layer_types", config.num_layers)[: config.num_layers]
        return first_dense(fields.with_entries(mlp_layer_types=kinds or None), config, 3)
    numbers = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(numbers, list) or not all(str(each).strip().isdecimal() for each in numbers if str(each).strip()):
        raise fields.bad("moe_layers_enum", listed, "a list of layers")
    return set(range(config.num_layers)) - {int(each) for each in numbers if str(each).strip()}


def _step_entries(fields: Fields) -> dict[str, Any]:
    heads, others = by_sight(fields, "num_attention_heads")
    kv_heads, other_kv_heads = by_sight(fields, "num_key_value_heads")
    turned = fields.integer("rope.dimension_count", fields.integer("head_dim"))
    slides, count = fields.get("sliding_window_pattern"), fields.integer("num_hidden_layers", maximum=4096)
    return {
        "num_attention_heads": heads,
        "num_sliding_attention_heads": others,
        "num_key_value_heads": kv_heads,
        "num_sliding_kv_heads": other_kv_heads,
        # llama.cpp has the half as a constant.
        f"rope_dim_of_{_FULL}": turned // 2,
        f"rope_dim_of_{_SLIDING}": fields.integer("rope.dimension_count_swa", turned),
        "mtp_layer_types": [_KINDS[bool(each)] for each in slides[count:]] if isinstance(slides, list) else None,
        **chosen_by_sigmoid(fields),
    }


_STEP_LAYOUT = layout_with(
    {
        "attention_gate": "layers.{i}.self_attn.g_proj",
        "router": "layers.{i}.moe.gate",
        "router_correction": "layers.{i}.moe.router_bias",
        **{f"expert_{part}": f"layers.{{i}}.moe.{part}_proj" for part in ("gate", "up", "down")},
        **{f"shared_{part}": f"layers.{{i}}.share_expert.{part}_proj" for part in ("gate", "up", "down")},
    },
    beyond=True,
)
_TOWERS = (r"(model\.)?(vision_model|vit_large_projector|multi_modal_projector)\..*",)
_NO_WEIGHTS = {"routed_scaling_factor": 1.0, "first_k_dense_replace": 0}

_MIMO_V2 = layout_with(
    {"sinks": "layers.{i}.self_attn.attention_sink_bias"},
    base=EXPERTS_LAYOUT,
    layer=dict(EXPERTS_LAYOUT.layer),
    whole=EXPERTS_LAYOUT.whole | {"sinks"},
    beyond=True,
)
_MIMO_TOWERS = (r"(visual|audio_encoder|speech_embeddings)\..*",)

FAMILIES = (
    Family(
        "mimo_v2",
        _mimo_v2,
        replace(_MIMO_V2, ignored=(*_MIMO_V2.ignored, *_MIMO_TOWERS)),
        kind="experts",
    ),
    Family(
        "mimo_v2_flash",
        _mimo_v2,
        _MIMO_V2,
        Gguf(
            "mimo2",
            replace(GGUF_MIXED, spellings={"qkv": "blk.{i}.attn_qkv"}),
            {"attention_value_scale": "attention.value_scale"},
            {**_NO_WEIGHTS, "norm_topk_prob": True},
            _mimo_v2_entries,
        ),
        "experts",
    ),
    Family(
        "step3p5",
        _step,
        _STEP_LAYOUT,
        Gguf(
            "step35",
            replace(GGUF_MIXED, factored_rope=0, spare_factors=True, spellings={"qkv": "blk.{i}.attn_qkv"}),
            {
                "share_expert_dim": "expert_shared_feed_forward_length",
                "moe_router_scaling_factor": "expert_weights_scale",
                "norm_expert_weight": "expert_weights_norm",
                "swiglu_limits": "swiglu_clamp_exp",
                "swiglu_limits_shared": "swiglu_clamp_shexp",
            },
            {"norm_expert_weight": False, "first_k_dense_replace": 0},
            _step_entries,
        ),
        "experts",
    ),
    Family(
        "step3p7",
        lambda fields: _step(fields.text_config()),
        replace(_STEP_LAYOUT, ignored=(*_STEP_LAYOUT.ignored, *_TOWERS)),
        kind="experts",
    ),
)
