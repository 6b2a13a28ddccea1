"""What descriptions of mixtures of experts share, whatever their attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import TensorLayout
from headstart.models.families.fields import Fields
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT


def with_experts(config: ModelConfig, experts: ExpertsConfig, dense: set[int] | None = None) -> ModelConfig:
    """The model with experts in all layers but those that are ``dense``."""
    layers = (
        layer if index in (dense or ()) else replace(layer, channel="experts")
        for index, layer in enumerate(config.layers)
    )
    return replace(config, layers=tuple(layers), experts=experts)


def count_of(fields: Fields, *keys: str, default: int | None = None) -> int:
    """A number of experts, by whichever name it has."""
    return fields.integer(next((key for key in keys if fields.get(key) is not None), keys[0]), default)


def used_of(fields: Fields, count: int, default: int) -> int:
    """How many of ``count`` experts a row goes through."""
    return fields.integer("num_experts_per_tok", min(default, count), maximum=count)


def first_dense(fields: Fields, config: ModelConfig, default: int) -> set[int]:
    """The layers without experts: the first few, or as they are listed."""
    kinds = fields.kinds("mlp_layer_types", config.num_layers, ("dense", "sparse"))
    if kinds is None:
        return set(range(fields.integer("first_k_dense_replace", default, minimum=0)))
    return {index for index, kind in enumerate(kinds) if kind == "dense"}


def sigmoid_experts(fields: Fields, count: int, used: int, shared: str, scale: float = 1.0) -> ExpertsConfig:
    """Chosen as in DeepSeek-V3; ``shared``: what the number of shared experts is called; others are defaults."""
    size = fields.integer("moe_intermediate_size")
    groups = fields.integer("n_group", 1)
    return ExpertsConfig(
        count,
        used_of(fields, count, used),
        size,
        shared_size=size * fields.integer(shared, 1, minimum=0),
        score="sigmoid",
        correction=True,
        groups=groups,
        groups_used=fields.integer("topk_group", 1, maximum=groups),
        group_score="two_best",
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", scale),
    )


def swiglu_limits(fields: Fields, count: int, default: float) -> list[float]:
    """Of each of ``count`` layers, what gates and ups are cut off at; 0: nothing."""
    limits = fields.get("swiglu_limit")
    limits = limits if isinstance(limits, list) else [default if limits is None else limits] * count
    if len(limits) < count or not all(isinstance(each, int | float) and 0 <= each < 1e30 for each in limits):
        raise fields.bad("swiglu_limit", fields.get("swiglu_limit"), "a positive number")
    return [float(each) for each in limits[:count]]


BY_EXPERT = {
    "router": "layers.{i}.mlp.gate",
    "expert_gate": "layers.{i}.mlp.experts.{e}.gate_proj",
    "expert_up": "layers.{i}.mlp.experts.{e}.up_proj",
    "expert_down": "layers.{i}.mlp.experts.{e}.down_proj",
}
STACKED = {"expert_up": "layers.{i}.mlp.experts.gate_up_proj", "expert_down": "layers.{i}.mlp.experts.down_proj"}
"""All experts of a layer in one tensor, gate and up in one."""
IN_BLOCK = {
    "router": "layers.{i}.block_sparse_moe.gate",
    "expert_gate": "layers.{i}.block_sparse_moe.experts.{e}.w1",
    "expert_up": "layers.{i}.block_sparse_moe.experts.{e}.w3",
    "expert_down": "layers.{i}.block_sparse_moe.experts.{e}.w2",
    "router_correction": "layers.{i}.block_sparse_moe.e_score_correction_bias",
}


def shared(name: str) -> dict[str, str]:
    """Names of the expert that all rows go through."""
    return {f"shared_{part}": f"layers.{{i}}.mlp.{name}.{part}_proj" for part in ("gate", "up", "down")}


def layout_with(
    more: dict[str, str], base: TensorLayout = HF_LAYOUT, layer: dict[str, str] = HF_LAYER, **changes: Any
) -> TensorLayout:
    """Names of a family with ``more`` roles than the others."""
    return replace(base, layer=layer | more, **changes)


EXPERTS_LAYOUT = layout_with(
    BY_EXPERT | shared("shared_experts") | {"router_correction": "layers.{i}.mlp.gate.e_score_correction_bias"}
)
