"""Qwen3-Next and Qwen3.5: the gated delta rule, and gated attention in every fourth layer.

Sources: the configuration and modelling files of transformers (models/qwen3_next, qwen3_5, qwen3_5_moe). Of models that
see, the decoder inside is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headstart.models.config import HeadNorms, LayerConfig, ModelConfig, NormsConfig
from headstart.models.families.base import Family, Gguf, TensorLayout
from headstart.models.families.experts import BY_EXPERT, shared
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYER, GGUF_MIXED, STATES, size_of_state_heads
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, biased
from headstart.models.families.mixtures import qwen_experts
from headstart.models.families.rope import partial_rope_of
from headstart.models.state_config import DeltaConfig

_KINDS = ("linear_attention", "full_attention")


def _base(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("head_dim", 256)
    config = base_of(
        fields,
        default_head_dim=256,
        rope=partial_rope_of(fields, head_dim, 0.25),
        # GGUF files have it added to the weights.
        norms=NormsConfig(offset=0.0 if fields.of_gguf else 1.0),
        attention=replace(biased(fields), qk_norm=HeadNorms(), gate="element"),
        delta=_delta(fields),
    )
    kinds = fields.kinds("layer_types", config.num_layers, _KINDS)
    if kinds is None:
        every = fields.integer("full_attention_interval", 4)
        kinds = [_KINDS[(index + 1) % every == 0] for index in range(config.num_layers)]
    layers = (LayerConfig() if kind == "full_attention" else LayerConfig(rope=None, mixer="delta") for kind in kinds)
    return replace(config, layers=tuple(layers))


def _delta(fields: Fields) -> DeltaConfig:
    delta = DeltaConfig(
        fields.integer("linear_num_key_heads", 16),
        fields.integer("linear_num_value_heads", 32),
        fields.integer("linear_key_head_dim", 128),
        fields.integer("linear_value_head_dim", 128),
        fields.integer("linear_conv_kernel_dim", 4, minimum=2),
        fields.number("rms_norm_eps", 1e-6),
        fields.flag("tiled_values", False),
    )
    if delta.value_heads % delta.key_heads:
        raise fields.bad(
            "linear_num_key_heads", delta.key_heads, f"a divisor of the {delta.value_heads} heads of values"
        )
    return delta


def _experts(fields: Fields, config: ModelConfig, count: int, used: int) -> ModelConfig:
    return qwen_experts(
        fields.with_defaults({"norm_topk_prob": True}),
        config,
        count=fields.integer("num_experts", count),
        size=fields.integer("moe_intermediate_size", 512),
        used=used,
        shared_size=fields.integer("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )


def _qwen3_next(fields: Fields) -> ModelConfig:
    return _experts(fields, _base(fields), 512, 10)


def _qwen3_5(fields: Fields) -> ModelConfig:
    return _base(_text(fields))


def _qwen3_5_moe(fields: Fields) -> ModelConfig:
    text = _text(fields)
    # Every layer has experts; there is no dense size.
    config = _base(text.with_entries(intermediate_size=text.get("intermediate_size") or 1))
    return _experts(text, config, 256, 8)


def _text(fields: Fields) -> Fields:
    """The decoder's description, be it in one of a model that sees."""
    return fields if fields.get("text_config") is None else fields.text_config()


def _queries(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Of [head * (query, gate), ...]."""
    return tensor.view(config.num_heads, 2, config.head_dim, -1)[:, 0].reshape(-1, *tensor.shape[1:])


def _gates(tensor: Tensor, config: ModelConfig) -> Tensor:
    return tensor.view(config.num_heads, 2, config.head_dim, -1)[:, 1].reshape(-1, *tensor.shape[1:])


def _qkv_gate(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Of [head of keys * (query, key, its values, their gates), ...]."""
    delta = _of(config)
    values = delta.values // delta.key_heads
    return _parts_first(tensor, delta, [delta.key_dim, delta.key_dim, values, values])


def _share_step(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Of [head of keys * (shares, steps) of its heads of values, ...]."""
    delta = _of(config)
    heads = delta.value_heads // delta.key_heads
    return _parts_first(tensor, delta, [heads, heads])


def _parts_first(tensor: Tensor, delta: DeltaConfig, sizes: list[int]) -> Tensor:
    """[head of keys * part, ...] with parts of these sizes -> [part * head of keys, ...]."""
    heads = torch.split(tensor.view(delta.key_heads, sum(sizes), -1), sizes, dim=1)
    return torch.cat([part.flatten(0, 1) for part in heads]).view(tensor.shape)


def _of(config: ModelConfig) -> DeltaConfig:
    assert config.delta is not None
    return config.delta


_ATTENTION = {"attention_gate": "layers.{i}.self_attn.q_proj"}
_DELTA = {
    "convolution_kernel": "layers.{i}.linear_attn.conv1d",
    "step_bias": "layers.{i}.linear_attn.dt_bias",
    "log_decay": "layers.{i}.linear_attn.A_log",
    "state_norm": "layers.{i}.linear_attn.norm",
    "delta_output": "layers.{i}.linear_attn.out_proj",
}
_TOGETHER = {
    "delta_qkv_gate": "layers.{i}.linear_attn.in_proj_qkvz",
    "delta_share_step": "layers.{i}.linear_attn.in_proj_ba",
}
_APART = {
    "delta_qkv": "layers.{i}.linear_attn.in_proj_qkv",
    "delta_gate": "layers.{i}.linear_attn.in_proj_z",
    "delta_share": "layers.{i}.linear_attn.in_proj_b",
    "delta_step": "layers.{i}.linear_attn.in_proj_a",
}
_EXPERTS = BY_EXPERT | shared("shared_expert") | {"shared_scale": "layers.{i}.mlp.shared_expert_gate"}
_LAYOUT = replace(
    HF_LAYOUT,
    layer=HF_LAYER | _ATTENTION | _DELTA | _APART,
    excerpts={"q": 2, "attention_gate": 2},
    convert={"q": _queries, "attention_gate": _gates},
    ignored=(*HF_LAYOUT.ignored, r"(model\.)?visual\..*"),
)
_MOE_LAYOUT = replace(_LAYOUT, layer={**_LAYOUT.layer, **_EXPERTS})
_NEXT_LAYOUT = replace(
    _LAYOUT,
    layer=HF_LAYER | _ATTENTION | _DELTA | _TOGETHER | _EXPERTS,
    convert={**_LAYOUT.convert, "delta_qkv_gate": _qkv_gate, "delta_share_step": _share_step},
)


def _within(layout: TensorLayout) -> TensorLayout:
    """In a file of a model that sees."""
    return replace(layout, prefix="model.language_model.", other=layout)


_GGUF_LAYOUT = replace(
    GGUF_MIXED,
    layer=GGUF_LAYER
    | {
        "attention_gate": "blk.{i}.attn_q",
        "mlp_norm": "blk.{i}.post_attention_norm",
        "delta_qkv": "blk.{i}.attn_qkv",
        "delta_gate": "blk.{i}.attn_gate",
        "delta_share": "blk.{i}.ssm_beta",
        "delta_step": "blk.{i}.ssm_alpha",
        "delta_output": "blk.{i}.ssm_out",
    },
    excerpts={"q": 2, "attention_gate": 2},
    convert={"q": _queries, "attention_gate": _gates, **STATES},
)
_GGUF_NEXT_LAYOUT = replace(
    _GGUF_LAYOUT,
    layer={**_GGUF_LAYOUT.layer, "delta_share_step": "blk.{i}.ssm_ba"},
    convert={**_GGUF_LAYOUT.convert, "delta_share_step": _share_step},
)


def _computed(fields: Fields) -> dict[str, Any]:
    # Where all layers have experts, there is no other size.
    return {
        "linear_value_head_dim": size_of_state_heads(fields),
        "intermediate_size": fields.get("intermediate_size") or 1,
    }


_GGUF = Gguf("", _GGUF_LAYOUT, computed=_computed)
_TILED = {"tiled_values": True}

FAMILIES = (
    Family(
        "qwen3_next",
        _qwen3_next,
        _NEXT_LAYOUT,
        replace(_GGUF, architecture="qwen3next", layout=_GGUF_NEXT_LAYOUT),
        "experts",
    ),
    *(
        Family(
            name,
            _qwen3_5,
            _within(_LAYOUT),
            replace(_GGUF, architecture="qwen35", defaults=_TILED),
        )
        for name in ("qwen3_5", "qwen3_5_text")
    ),
    *(
        Family(
            name,
            _qwen3_5_moe,
            _within(_MOE_LAYOUT),
            replace(_GGUF, architecture="qwen35moe", defaults=_TILED),
            "experts",
        )
        for name in ("qwen3_5_moe", "qwen3_5_moe_text")
    ),
)
