"""Gemma 4: heads of two sizes, values that are keys, last layers that read the keys and values of earlier ones, inputs
of layers, and experts beside an MLP, each of these in some models. The text forms, and the text of those that see and
hear.

Sources: the configuration and modelling files of transformers (models/gemma4, gemma4_unified); for GGUF llama.cpp's
converter (conversion/gemma.py), which has one kind of file for all forms, and its src/models/gemma4.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from headstart.models.config import (
    EmbeddingConfig,
    ExpertsConfig,
    HeadNorms,
    LayerConfig,
    LayerInputsConfig,
    MlpConfig,
    ModelConfig,
    OutputHeadConfig,
    ResidualConfig,
    RopeConfig,
)
from headstart.models.families.base import Family, TensorLayout
from headstart.models.families.fields import Fields
from headstart.models.families.gemma3n import (
    GGUF_INPUTS_LAYOUT,
    INPUTS_LAYOUT,
    TOWERS,
    by_layer,
    layer_inputs,
    shared_keys,
    text_of,
    windows_from_gguf,
)
from headstart.models.families.kin import with_defaults
from headstart.models.families.llama import base_from_gguf, base_from_hf, biased, windows_from_hf
from headstart.models.families.rope import rope_from_gguf, rope_from_hf

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


def _gemma4(family: str, defaults: Mapping[str, Any], fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    fields = with_defaults(fields, {**_DEFAULTS, **defaults})
    size = fields.integer("head_dim", 256)
    local = rope_from_hf(fields, size, _LOCAL_THETA, "sliding_attention")
    config = base_from_hf(
        fields,
        family,
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
    windows = [*windows_from_hf(fields, count, fields.integer("sliding_window"), sliding)[:-1], None]
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
            mlp_size=2 * config.mlp_size if wide and reads[index] is not None else None,
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
        ropes=(local, rope_from_hf(fields, full.pop(), _GLOBAL_THETA, "full_attention", whole_heads=False)),
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


def _gemma4_gguf(fields: Fields) -> ModelConfig:
    """Layers that see everything are taken to have values that are keys; only tensors tell (``with_own_values``)."""
    count = fields.integer("block_count", maximum=4096)
    windows = windows_from_gguf(fields, count, _PATTERN)
    wide, size = _head_sizes(fields)
    sizes, kv_heads = (by_layer(fields, key, count) for key in ("feed_forward_length", "attention.head_count_kv"))
    key = "attention.shared_kv_layers"
    reads = shared_keys(fields, key, windows, fields.integer(key, 0, minimum=0))
    local = RopeConfig(fields.number("rope.freq_base_swa", _LOCAL_THETA), size)
    own = {"attention.key_length": size, "attention.value_length": size, "attention.head_count_kv": kv_heads[0]}
    config = base_from_gguf(
        fields.with_entries(feed_forward_length=sizes[0], **own),
        "gemma4",
        rope=local,
        experts=True,
        mlp=MlpConfig("gelu_tanh"),
        head=OutputHeadConfig(softcap=fields.optional_number("final_logit_softcapping")),
    )
    has_experts = fields.integer("expert_count", 0, minimum=0) > 0
    input_size = fields.integer("embedding_length_per_layer_input", 0, minimum=0)
    layers = [
        LayerConfig(
            window,
            rope=1 if window is None else 0,
            channel="mlp+experts" if has_experts else "mlp",
            reads=reads[index],
            mlp_size=sizes[index] if sizes[index] != sizes[0] else None,
            values_are_keys=window is None and reads[index] is None,
            input=index if input_size else None,
            head_dim=wide if window is None else None,
            num_kv_heads=kv_heads[index] if kv_heads[index] != kv_heads[0] else None,
        )
        for index, window in enumerate(windows)
    ]
    if has_experts:
        config = replace(config, experts=_experts_gguf(fields, count))
    return replace(
        _with_parts(config, layers),
        ropes=(local, rope_from_gguf(fields, wide, _GLOBAL_THETA)),
        layer_inputs=LayerInputsConfig(count, input_size, config.vocab_size) if input_size else None,
    )


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


def _experts_gguf(fields: Fields, layers: int) -> ExpertsConfig:
    key, count = "expert_feed_forward_length", fields.integer("expert_count")
    sizes = set(by_layer(fields, key, layers))
    if len(sizes) > 1:
        raise fields.unsupported(key, fields.get(key), "the same in all layers")
    used = fields.integer("expert_used_count", maximum=count)
    return ExpertsConfig(count, used, sizes.pop(), normalised=True, router_norm=True, own_scales=True)


def _overrides(fields: Fields, windows: list[int | None]) -> dict[int, dict[str, int]]:
    """What single layers have of their own: listed, as transformers 5.20 and later write it, or told of all that have
    full attention."""
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


def _seeing(family: str, defaults: Mapping[str, Any], fields: Fields) -> ModelConfig:
    return _gemma4(family, defaults, text_of(fields))


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
    whole=frozenset({"layer_scale", "router_norm", "expert_scales", "expert_up", "expert_down"}),
    convert={"router_norm": _router_norm},
)
_SEEING_LAYOUT = replace(_LAYOUT, prefix="model.language_model.", ignored=(*_LAYOUT.ignored, *TOWERS))


_GGUF_LAYOUT: TensorLayout = replace(
    GGUF_INPUTS_LAYOUT,
    layer={
        **GGUF_INPUTS_LAYOUT.layer,
        "layer_scale": "blk.{i}.layer_output_scale",
        "router": "blk.{i}.ffn_gate_inp",
        "router_norm": "blk.{i}.ffn_gate_inp.scale",
        "expert_scales": "blk.{i}.ffn_down_exps.scale",
        "expert_up": "blk.{i}.ffn_gate_up_exps",
        "expert_down": "blk.{i}.ffn_down_exps",
        "dense_post_norm": "blk.{i}.post_ffw_norm_1",
        "experts_norm": "blk.{i}.pre_ffw_norm_2",
        "experts_post_norm": "blk.{i}.post_ffw_norm_2",
    },
    factored_rope=1,
    whole=frozenset({"router_norm", "expert_scales"}),
    convert={"router_norm": _router_norm},
)


def _families(model_type: str, defaults: Mapping[str, Any]) -> tuple[Family, Family]:
    """A text form and the one that sees and hears."""
    text, seeing = model_type, f"{model_type}_seeing"

    def family(name: str, kind: str, hf: Callable[[Fields], ModelConfig], layout: TensorLayout) -> Family:
        return Family(name, kind, "gemma4", hf, _gemma4_gguf, layout, _GGUF_LAYOUT)

    return (
        family(text, f"{model_type}_text", partial(_gemma4, text, defaults), _LAYOUT),
        family(seeing, model_type, partial(_seeing, seeing, defaults), _SEEING_LAYOUT),
    )


FAMILIES = (*_families("gemma4", _APART), *_families("gemma4_unified", _UNIFIED))
