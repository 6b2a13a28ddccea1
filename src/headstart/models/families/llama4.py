"""The text of Llama 4: attention within chunks, layers without positions whose queries grow, and experts whose scores
are factors of what they read.

Sources: the configuration and modelling files of transformers (models/llama4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import HeadNorms, LayerConfig, ModelConfig, QueryGrowth
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf
from headstart.models.families.experts import used_of, with_experts
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.llama import GGUF_MIXED_INTERLEAVED, HF_LAYER, HF_LAYOUT, base_of, biased, halves

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
"""transformers' own: released files leave out what equals them."""


def _llama4(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    normed = fields.flag("use_qk_norm", True)
    growth = None
    if fields.flag("attn_temperature_tuning", True):
        trained = fields.integer("floor_scale", 8192, maximum=MAX_POSITIONS)
        growth = QueryGrowth(fields.number("attn_scale", 0.1), trained, everywhere=False)
    config = base_of(
        fields,
        default_theta=500_000.0,
        default_head_dim=128,
        default_eps=1e-5,
        attention=replace(
            biased(fields),
            qk_norm=HeadNorms(learnt=False, rotated=True, everywhere=False) if normed else None,
            query_growth=growth,
        ),
    )
    size = config.mlp_size
    config = replace(config, mlp_size=fields.integer("intermediate_size_mlp", 16_384), layers=_layers(fields, config))
    count = fields.integer("num_local_experts", 16)
    experts = ExpertsConfig(
        count, used_of(fields, count, 1), size, shared_size=size, score="sigmoid", scales_input=True
    )
    return with_experts(config, experts, _dense(fields, config.num_layers))


def _layers(fields: Fields, config: ModelConfig) -> tuple[LayerConfig, ...]:
    count = config.num_layers
    interval = fields.integer("no_rope_layer_interval", 4)
    rotates = fields.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(rotates, list) or len(rotates) != count or any(each not in (0, 1) for each in rotates):
        raise fields.bad("no_rope_layers", rotates, f"{count} entries, each 0 or 1")
    known = ("full_attention", "chunked_attention")
    kinds = fields.kinds("layer_types", count, known) or [known[each] for each in rotates]
    chunk = fields.integer("attention_chunk_size", 8192, maximum=MAX_POSITIONS)
    return tuple(
        LayerConfig(rope=0 if rotated else None, chunk=chunk if kind == "chunked_attention" else None)
        for rotated, kind in zip(rotates, kinds, strict=True)
    )


def _dense(fields: Fields, count: int) -> set[int]:
    step = fields.integer("interleave_moe_layer_step", 1)
    none_given = fields.get("moe_layers") is None
    mixed = range(step - 1, count, step) if none_given else fields.layers("moe_layers")
    return set(range(count)) - set(mixed)


def _seeing(fields: Fields) -> ModelConfig:
    return replace(_llama4(fields.text_config()), family="llama4_seeing")


_LAYOUT = replace(
    HF_LAYOUT,
    layer={
        **{role: name.replace("mlp", "feed_forward") for role, name in HF_LAYER.items()},
        "router": "layers.{i}.feed_forward.router",
        "expert_up": "layers.{i}.feed_forward.experts.gate_up_proj",
        "expert_down": "layers.{i}.feed_forward.experts.down_proj",
        "shared_gate": "layers.{i}.feed_forward.shared_expert.gate_proj",
        "shared_up": "layers.{i}.feed_forward.shared_expert.up_proj",
        "shared_down": "layers.{i}.feed_forward.shared_expert.down_proj",
    },
    whole=WHOLE | {"expert_up", "expert_down"},
    stacks="transposed",
    convert={"q": halves, "k": halves},
)
_SEEING_LAYOUT = replace(
    _LAYOUT,
    prefix="language_model.model.",
    head="language_model.lm_head",
    ignored=(*_LAYOUT.ignored, r"vision_model\..*", r"multi_modal_projector\..*"),
)

_GGUF_NAMES = {"intermediate_size": "expert_feed_forward_length", "intermediate_size_mlp": "feed_forward_length"}
_MAVERICK = 128
"""Experts of the one Llama 4 that does not norm its heads."""


def _computed(fields: Fields) -> dict[str, bool]:
    return {"use_qk_norm": fields.integer("num_local_experts") != _MAVERICK}


FAMILIES = (
    Family(
        "llama4",
        _llama4,
        _LAYOUT,
        Gguf("llama4", GGUF_MIXED_INTERLEAVED, _GGUF_NAMES, computed=_computed),
        "experts",
        described_as="llama4_text",
    ),
    Family("llama4_seeing", _seeing, _SEEING_LAYOUT, kind="experts", described_as="llama4"),
)
