"""Gemma 4: heads of two sizes, values that are keys, last layers that read the keys and values of earlier ones, inputs
of layers, and experts beside an MLP, each of these in some models. The text forms, and the text of those that see and
hear.

Sources: the configuration and modelling files of transformers (models/gemma4, gemma4_unified); for GGUF llama.cpp's
converter (conversion/gemma.py), which has one kind of file for all forms, and its src/models/gemma4.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from headstart.models.config import (
    EmbeddingConfig,
    HeadNorms,
    LayerConfig,
    ModelConfig,
    OutputHeadConfig,
    ResidualConfig,
)
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf, TensorLayout, without
from headstart.models.families.fields import Fields
from headstart.models.families.gemma3n import (
    GGUF_DEFAULTS,
    GGUF_NAMES,
    INPUTS_LAYOUT,
    TOWERS,
    layer_inputs,
    shared_keys,
    sizes_of_mlps,
)
from headstart.models.families.gguf import GGUF_LAYER, GGUF_LAYOUT
from headstart.models.families.llama import base_of, biased, windows_of
from headstart.models.families.rope import rope_of

_LOCAL_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": _LOCAL_THETA},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": _GLOBAL_THETA},
}
_PATTERN = 6
"""Every so many-th layer has full attention, where no entry says which; and the last one, whatever it says."""
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "rope_parameters": _ROPES,
}
"""transformers' own: released files leave out what equals them."""
_APART: dict[str, Any] = {"max_position_embeddings": 131_072, "sliding_window": 512}
_UNIFIED: dict[str, Any] = {"max_position_embeddings": 262_144, "sliding_window": 1024} | {
    "hidden_size_per_layer_input": 0
}
_GLOBAL_HEAD = 512
_OWN = ("head_dim", "num_key_value_heads")
"""Entries that single layers may have of their own."""


def _gemma4(defaults: Mapping[str, Any], fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    fields = fields.with_defaults({**_DEFAULTS, **defaults})
    size = fields.integer("head_dim", 256)
    local = rope_of(fields, size, _LOCAL_THETA, "sliding_attention")
    sizes = sizes_of_mlps(fields)

    def size_of(index: int) -> int | None:
        """Of a layer's MLP where it is another than the first one's."""
        of_layer = 2 * sizes[0] if wide and reads[index] is not None else sizes[index]
        return None if of_layer == sizes[0] else of_layer

    config = base_of(
        fields.with_entries(intermediate_size=sizes[0]),
        tied=True,
        default_head_dim=256,
        rope=local,
        activation_key="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        attention=biased(fields),
        head=OutputHeadConfig(softcap=fields.optional_number("final_logit_softcapping")),
    )
    count = config.num_layers
    sliding = [(i + 1) % _PATTERN != 0 for i in range(count)]
    windows = [*windows_of(fields, count, fields.integer("sliding_window"), sliding)[:-1], None]
    shared = fields.integer("num_kv_shared_layers", 0, minimum=0)
    reads = shared_keys(fields, "num_kv_shared_layers", windows, shared)
    own = _overrides(fields, windows)
    same, wide = fields.flag("attention_k_eq_v", False), fields.flag("use_double_wide_mlp", False)
    inputs, experts = layer_inputs(fields, count), _experts(fields)
    layers = tuple(
        LayerConfig(
            window,
            rope=1 if window is None else 0,
            channel="mlp" if experts is None else "mlp+experts",
            reads=reads[index],
            mlp_size=size_of(index),
            values_are_keys=same and window is None and reads[index] is None,
            input=None if inputs is None else index,
            head_dim=own.get(index, {}).get("head_dim"),
            num_kv_heads=own.get(index, {}).get("num_key_value_heads"),
        )
        for index, window in enumerate(windows)
    )
    full = {config.head_dim_of(layer) for layer in layers if layer.window is None}
    if len(full) > 1:
        raise fields.unsupported("per_layer_config", fields.get("per_layer_config"), "one size of heads that see all")
    return replace(
        _with_parts(config, layers),
        ropes=(local, rope_of(fields, full.pop(), _GLOBAL_THETA, "full_attention", whole_heads=False)),
        layer_inputs=inputs,
        experts=experts,
    )


def _with_parts(config: ModelConfig, layers: Sequence[LayerConfig]) -> ModelConfig:
    """The model with what all descriptions mean alike."""
    return replace(
        config,
        layers=tuple(layers),
        attention=replace(config.attention, qk_norm=HeadNorms(), value_norm=True, scale=1.0),
        norms=replace(config.norms, post=True),
        embedding=EmbeddingConfig(config.hidden_size**0.5),
        residual=ResidualConfig(layer_scales=True),
    )


_GGUF_NAMES = {
    "head_dim": "attention.key_length_swa",
    "global_head_dim": "attention.key_length",
    "top_k_experts": "expert_used_count",
}


def _computed(fields: Fields) -> dict[str, Any]:
    """Layers that see everything are taken to have values that are keys; only tensors tell (``with_own_values``)."""
    count = fields.integer("num_hidden_layers")
    _, size = _head_sizes(fields)
    kv_heads = _by_layer(fields, "num_key_value_heads", count)
    sizes = _by_layer(fields, "moe_intermediate_size", count) if fields.integer("num_experts", 0, minimum=0) else []
    if len({*sizes}) > 1:
        key = "moe_intermediate_size"
        raise fields.unsupported(key, fields.get(key), "the same in all layers")
    return {
        "attention.value_length": size,
        "rope.dimension_count": size,
        "attention_k_eq_v": True,
        "num_key_value_heads": kv_heads[0],
        "kv_heads_by_layer": kv_heads,
        "vocab_size_per_layer_input": fields.integer("vocab_size"),
        "enable_moe_block": bool(sizes),
        **({"moe_intermediate_size": sizes[0]} if sizes else {}),
    }


def _by_layer(fields: Fields, key: str, count: int) -> list[int]:
    """[layer] of an entry that has a number for each layer or for all."""
    values = fields.get(key)
    if not isinstance(values, list):
        return [fields.integer(key)] * count
    if len(values) != count:
        raise fields.bad(key, values, f"a number or a list of {count}")
    return [fields.with_entries(**{key: value}).integer(key) for value in values]


def _head_sizes(fields: Fields) -> tuple[int, int]:
    """Of heads that see everything, and of those with a window. All of a head has a rotation, be it by nothing."""
    sizes = []
    for suffix in ("", "_swa"):
        size = fields.integer(f"attention.key_length{suffix}")
        for key in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
            if fields.integer(key, size) != size:
                raise fields.unsupported(key, fields.get(key), f"the key length, {size}")
        sizes.append(size)
    return sizes[0], sizes[1]


def _overrides(fields: Fields, windows: list[int | None]) -> dict[int, dict[str, int]]:
    """What single layers have of their own: listed, as transformers 5.20 and later write it, or told of all that have
    full attention."""
    if fields.of_gguf:
        first, *_ = kv_heads = fields.get("kv_heads_by_layer")
        wide = {"head_dim": fields.integer("global_head_dim")}
        return {
            index: (wide if window is None else {}) | ({"num_key_value_heads": kv} if kv != first else {})
            for index, (window, kv) in enumerate(zip(windows, kv_heads, strict=True))
        }
    listed = fields.within("per_layer_config")
    if listed is None and fields.get("per_layer_config") is None:
        told = {"head_dim": fields.integer("global_head_dim", _GLOBAL_HEAD)}
        kv_heads = fields.optional_integer("num_global_key_value_heads")
        if kv_heads is not None and fields.flag("attention_k_eq_v", False):
            told["num_key_value_heads"] = kv_heads
        return {index: told for index, window in enumerate(windows) if window is None}
    own: dict[int, dict[str, int]] = {}
    for key in () if listed is None else listed.entries:
        layer = listed.within(key) if listed is not None else None
        known = key.isdecimal() and int(key) < len(windows)
        if layer is None or not known or layer.entries.keys() - {*_OWN}:
            raise fields.unsupported(
                "per_layer_config", fields.get("per_layer_config"), f"{' and '.join(_OWN)} by number of layer"
            )
        own[int(key)] = {name: layer.integer(name) for name in layer.entries}
    return own


def _experts(fields: Fields) -> ExpertsConfig | None:
    if not fields.flag("enable_moe_block", False):
        return None
    count = fields.integer("num_experts")
    return ExpertsConfig(
        count,
        fields.integer("top_k_experts", maximum=count),
        fields.integer("moe_intermediate_size"),
        normalised=True,
        router_norm=True,
        own_scales=True,
    )


def _seeing(defaults: Mapping[str, Any], fields: Fields) -> ModelConfig:
    return _gemma4(defaults, fields.text_config())


def _router_norm(weight: Tensor, config: ModelConfig) -> Tensor:
    """What the router reads is divided by the root of its size."""
    return weight / math.sqrt(config.hidden_size)


_LAYOUT: TensorLayout = replace(
    INPUTS_LAYOUT,
    layer={
        **INPUTS_LAYOUT.layer,
        "layer_scale": "layers.{i}.layer_scalar",
        "router": "layers.{i}.router.proj",
        "router_norm": "layers.{i}.router.scale",
        "expert_scales": "layers.{i}.router.per_expert_scale",
        "expert_up": "layers.{i}.experts.gate_up_proj",
        "expert_down": "layers.{i}.experts.down_proj",
        "dense_post_norm": "layers.{i}.post_feedforward_layernorm_1",
        "experts_norm": "layers.{i}.pre_feedforward_layernorm_2",
        "experts_post_norm": "layers.{i}.post_feedforward_layernorm_2",
    },
    whole=WHOLE | {"layer_scale", "router_norm", "expert_scales", "expert_up", "expert_down"},
    convert={"router_norm": _router_norm},
)
_SEEING_LAYOUT = replace(_LAYOUT, prefix="model.language_model.", ignored=(*_LAYOUT.ignored, *TOWERS))


_GGUF_LAYOUT: TensorLayout = replace(
    GGUF_LAYOUT,
    layer={
        **without(GGUF_LAYER, "expert_gate"),
        "router_norm": "blk.{i}.ffn_gate_inp.scale",
        "expert_scales": "blk.{i}.ffn_down_exps.scale",
        "expert_up": "blk.{i}.ffn_gate_up_exps",
        "dense_post_norm": "blk.{i}.post_ffw_norm_1",
        "experts_norm": "blk.{i}.pre_ffw_norm_2",
        "experts_post_norm": "blk.{i}.post_ffw_norm_2",
    },
    factored_rope=1,
    whole=WHOLE | {"router_norm", "expert_scales"},
    convert={"router_norm": _router_norm},
)


_GGUF = Gguf(
    "gemma4",
    _GGUF_LAYOUT,
    GGUF_NAMES | _GGUF_NAMES,
    {**GGUF_DEFAULTS, "hidden_size_per_layer_input": 0},
    _computed,
    partial(_gemma4, _APART),
)


def _families(name: str, defaults: Mapping[str, Any]) -> tuple[Family, Family]:
    """A text form and the one that sees and hears."""
    return (
        Family(name, partial(_gemma4, defaults), _LAYOUT, _GGUF, described_as=f"{name}_text"),
        Family(f"{name}_seeing", partial(_seeing, defaults), _SEEING_LAYOUT, _GGUF, described_as=name),
    )


FAMILIES = (*_families("gemma4", _APART), *_families("gemma4_unified", _UNIFIED))
