"""HY-V4: latent attention with gates and sinks, connected to several streams that are not mixed.

Sources: the configuration and modelling files of transformers (models/hy_v4) and its table of names; for modules vLLM's
loader (hy_v4 mtp), which connects them to one stream; for GGUF llama.cpp's converter and model (hy_v4.py, hy-v4.cpp).
Neighbours turn together: vLLM, SGLang and llama.cpp, whose converter moves no rows, agree on that for the published
weights; transformers 5.23 alone turns halves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import ModelConfig
from headstart.models.families.base import WHOLE, Family, Gguf, without
from headstart.models.families.deepseek import (
    GGUF_INDEXED,
    INDEX_LAYER,
    INDEX_NAMES,
    INDEXER,
    LATENT_LAYER,
    TURNED,
    TURNED_INDEX,
    indexed,
    latent_entries,
    latent_of,
)
from headstart.models.families.experts import (
    EXPERTS_LAYOUT,
    STACKED,
    count_of,
    first_dense,
    layout_with,
    sigmoid_experts,
    swiglu_limits,
    with_experts,
)
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import chosen_by_sigmoid
from headstart.models.families.kimi import GGUF_HYPER, hyper_roles
from headstart.models.streams_config import HyperConfig


def _hy_v4(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults({"rms_norm_eps": 1e-5})
    fields.require("enable_ihc", True, default=True)
    fields.require("gating_type", "elementwise", default="elementwise")
    config = latent_of(fields, 1536, 512, (192, 64, 256))
    if fields.has("index_topk") or not fields.of_gguf:
        shares = [index > 0 and index % 4 != 1 for index in range(config.num_layers)]
        config = indexed(fields, config, "hy_v4", shares, 16)
    hyper = HyperConfig(
        fields.integer("hc_mult", 4, maximum=8),
        rounds=0,
        eps=fields.number("hc_eps", 1e-6),
        most=fields.number("hc_magnitude", 2.0),
        merges=True,
    )
    limits = swiglu_limits(fields, config.num_layers, 0.0 if fields.of_gguf else 10.0)
    config = replace(
        config,
        attention=replace(config.attention, gate="element", sinks=True),
        layers=tuple(
            replace(layer, expert_limit=limit or None, limits_raw=True)
            for layer, limit in zip(config.layers, limits, strict=True)
        ),
        residual=replace(config.residual, hyper=hyper),
    )
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=256)
    experts = sigmoid_experts(fields, count, 8, "n_shared_experts", 2.827)
    return with_experts(config, experts, first_dense(fields, config, 1))


def _entries(fields: Fields) -> dict[str, Any]:
    return {**chosen_by_sigmoid(fields), **latent_entries(fields)}


_OWN = {"attention_gate": "layers.{i}.self_attn.linear_gate", "sinks": "layers.{i}.self_attn.learnable_sink_param"}
_HYPER = hyper_roles("layers.{i}.hc_", mixer="attn_layer.hc_pre.hc", channel="mlp_layer.hc_pre.hc")
_HYPER |= hyper_roles("hc_head.hc_", end="head")
_SAVED = hyper_roles("layers.{i}.hc_pre.hc_", mixer="attn_layer.hc", channel="mlp_layer.hc")
_SAVED |= hyper_roles("hc_pre.hc_head.hc_", end="head")
_SAVED |= {"gate": "layers.{i}.mlp.linear_gate", "shared_gate": "layers.{i}.mlp.shared_experts.linear_gate"}
"""What transformers makes of released names when it saves a model."""
_HF = layout_with(
    _OWN | _HYPER | STACKED,
    EXPERTS_LAYOUT,
    without({**EXPERTS_LAYOUT.layer, **LATENT_LAYER, **INDEX_LAYER}, "expert_gate"),
    whole=WHOLE | STACKED.keys() | _HYPER.keys() | {"sinks"},
    convert={**TURNED, **TURNED_INDEX},
    ignored=(*EXPERTS_LAYOUT.ignored, INDEXER),
    spellings=_SAVED,
    without_bias=frozenset({"index_key", "index_shares"}),
)
_GGUF = replace(
    GGUF_INDEXED,
    layer={**GGUF_INDEXED.layer, **GGUF_HYPER, **hyper_roles("output_", end="hc")},
    convert={**GGUF_INDEXED.convert, **TURNED_INDEX},
)
_NAMES = INDEX_NAMES | {
    "swiglu_limit": "swiglu_clamp_exp",
    "hc_mult": "hyper_connection.count",
    "hc_eps": "hyper_connection.epsilon",
    "hc_magnitude": "hyper_connection.magnitude",
}

FAMILIES = (Family("hy_v4", _hy_v4, _HF, Gguf("hyv4", _GGUF, _NAMES, {"norm_topk_prob": False}, _entries), "experts"),)
