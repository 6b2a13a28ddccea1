"""The kinds of decoder Headstart knows; a new one costs a file here and no new decoder."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from headstart.errors import CheckpointError, UnsupportedModelError
from headstart.models.config import ModelConfig
from headstart.models.families.base import CheckpointKind, Family, TensorLayout, named
from headstart.models.families.encoder_decoder import EncoderDecoderFamily, EncoderDecoderLayout
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import described
from headstart.models.families.rope import reach

_ALL = [
    family
    for module in iter_modules(__path__)
    for family in getattr(import_module(f"{__name__}.{module.name}"), "FAMILIES", ())
]
FAMILIES = tuple(family for family in _ALL if isinstance(family, Family))
ENCODER_DECODER_FAMILIES = tuple(family for family in _ALL if isinstance(family, EncoderDecoderFamily))

Kind = TypeVar("Kind")
_BY_NAME = {family.name: family for family in FAMILIES}
_ENCODER_DECODERS = {family.name: family for family in ENCODER_DECODER_FAMILIES}
_BY_MODEL_TYPE: dict[str, Family | EncoderDecoderFamily] = {
    **{family.model_type: family for family in FAMILIES if family.model_type},
    **{family.name: family for family in ENCODER_DECODER_FAMILIES},
}
_BY_ARCHITECTURE: dict[str, Family | EncoderDecoderFamily] = {
    **{
        family.gguf.architecture: family
        for family in reversed(FAMILIES)
        if family.gguf is not None and family.gguf.architecture
    },
    **{family.architecture: family for family in reversed(ENCODER_DECODER_FAMILIES) if family.architecture},
}
_MIXTURES = {
    family.gguf.architecture: family
    for family in reversed(FAMILIES)
    if family.gguf is not None and family.kind == "experts"
}
"""GGUF has one name for Llama and Mixtral."""
_ENCODERS_ALONE = ("t5encoder",)
_TOWERS_ALONE = "clip"
_OF_LAYER, _OF_MODULES = re.compile(r"(?:.*\.)?layers\.\d+\."), re.compile(r"(?:^|\.)mtp[._]")
"""How names of folders begin."""
_GGUF_EMBEDDING, _GUESSING = "token_embd.weight", re.compile(r"blk\.(\d{1,6})\.nextn\.")


def config_from_hf(config: Mapping[str, Any], name: str = "") -> ModelConfig:
    """Read the contents of a ``config.json``; ``name`` says in messages where it is from.

    Raises:
        CheckpointError: unknown architecture, unsupported feature, missing or impossible entry.
    """
    source = f"model {name!r}" if name else "config.json"
    fields = Fields(config, source)
    family = _known(_BY_MODEL_TYPE, fields.text("model_type", ""), "model_type", source)
    return _checked(replace(named(family.read(fields), family.name), name=name), source)


def config_from_gguf(
    metadata: Mapping[str, Any], tensors: Container[str] | Mapping[str, tuple[int, ...]] = (), name: str = ""
) -> ModelConfig:
    """Read a GGUF file's metadata (plain Python values).

    ``tensors``: names of the file's tensors, for what only they tell: whether the head is tied to the embedding, and
    where there are biases. With their shapes, the embedding's rows say how many tokens there are, whatever the entry
    ``vocab_size`` does: llama.cpp does not read that where there is a list of tokens.

    Raises:
        CheckpointError: unknown architecture, unsupported feature, missing or impossible entry.
    """
    source = f"model {name!r}" if name else "GGUF metadata"
    architecture = Fields(metadata, source).text("general.architecture", "")
    if architecture == _TOWERS_ALONE:
        raise UnsupportedModelError(
            f"{source} has general.architecture {architecture!r}: what reads images or sounds for a model (mmproj); "
            "name the file of the model itself."
        )
    if architecture in _ENCODERS_ALONE:
        raise UnsupportedModelError(
            f"{source} has general.architecture {architecture!r}: an encoder without a decoder, which writes nothing; "
            "use the file of the whole model."
        )
    family = _known(_BY_ARCHITECTURE, architecture, "general.architecture", source)
    fields = Fields(metadata, source, f"{architecture}.")
    if isinstance(tensors, Mapping) and _GGUF_EMBEDDING in tensors:
        fields = fields.with_entries(vocab_size=tensors[_GGUF_EMBEDDING][0])
        guessing = {int(found[1]) for name in tensors if (found := _GUESSING.match(name))}
        blocks = fields.integer("block_count", 0, minimum=0)
        counted = sum(layer < blocks for layer in guessing)
        fields = fields.with_defaults({"nextn_predict_layers": counted})
        if architecture == "deepseek4" and not guessing and f"blk.{blocks - 1}.attn_norm.weight" in tensors:
            # Files may say how many there were and leave them out, and out of their count of blocks.
            fields = fields.with_entries(nextn_predict_layers=0)
    if fields.integer("expert_count", 0, minimum=0) and architecture in _MIXTURES:
        family = _MIXTURES[architecture]
    if isinstance(family, EncoderDecoderFamily):
        assert family.gguf is not None
        return _checked(replace(family.gguf(fields, tensors), name=name), source)
    fields.refuse("attention.causal", False, because="an encoder's attention")
    assert family.gguf is not None
    config = named((family.gguf.read or family.read)(described(fields, family.gguf)), family.name)
    if config.experts is None and fields.integer("expert_count", 0, minimum=0) > 1:
        raise UnsupportedModelError(f"{source} is a mixture of experts, which is not supported; use another model.")
    layout = tensor_layout(config, "gguf")
    tied = f"{layout.head}.weight" not in tensors
    if holds_modules_alone(tensors):
        tensors = ()
    config = _with_own_values(_with_dense_layers(config, layout, tensors), layout, tensors)
    return _checked(
        replace(
            config,
            head=replace(config.head, tied=tied),
            attention=replace(
                config.attention,
                qkv_bias=config.attention.qkv_bias or _has_bias(layout, tensors, "qkv", "q", "k", "v"),
                output_bias=config.attention.output_bias or _has_bias(layout, tensors, "output"),
                qk_norm=config.attention.qk_norm if _may_norm_heads(config, layout, tensors) else None,
            ),
            mlp=replace(config.mlp, bias=config.mlp.bias or _has_bias(layout, tensors, "gate", "up", "down")),
            name=name,
        ),
        source,
    )


def holds_modules_alone(names: Container[str] | Mapping[str, object]) -> bool:
    """Whether a file or folder has multi-token modules and no decoder."""
    if not isinstance(names, Mapping):
        return False
    if any(".nextn." in name for name in names):
        return not any(name.startswith("blk.0.") for name in names)
    modules = {name.partition("eh_proj.")[0] for name in names if ".eh_proj." in name}
    others = [name for name in names if not _OF_MODULES.search(name)]
    layers = {found[0] for name in others if (found := _OF_LAYER.match(name))}
    return layers <= modules and (bool(modules) or len(others) < len(names))


def tensor_layout(config: ModelConfig, kind: CheckpointKind) -> TensorLayout:
    """Where the tensors of this model's family are in one kind of file."""
    return _BY_NAME[config.family].layout(kind)


def encoder_decoder_layout(config: ModelConfig, kind: CheckpointKind) -> EncoderDecoderLayout:
    """The same for a model with an encoder."""
    family = _ENCODER_DECODERS[config.family]
    layout = family.layout if kind == "hf" else family.gguf_layout
    assert layout is not None
    return layout(config)


def _with_dense_layers(config: ModelConfig, layout: TensorLayout, tensors: Container[str]) -> ModelConfig:
    """Of a mixture, what has an MLP and no router has no experts (Jamba: no entry says which layers have any)."""

    def dense(index: int) -> bool:
        names = (f"{layout.layer[role].format(i=index)}.weight" for role in ("up", "router"))
        return [name in tensors for name in names] == [True, False]

    layers = (
        replace(layer, channel="mlp") if layer.channel == "experts" and dense(index) else layer
        for index, layer in enumerate(config.layers)
    )
    return replace(config, layers=tuple(layers))


def _with_own_values(config: ModelConfig, layout: TensorLayout, tensors: Container[str]) -> ModelConfig:
    """Layers have values of their own where they have a matrix of them (Gemma 4: no entry says which do)."""
    layers = (
        replace(layer, values_are_keys=False)
        if layer.values_are_keys and f"{layout.layer['v'].format(i=index)}.weight" in tensors
        else layer
        for index, layer in enumerate(config.layers)
    )
    return replace(config, layers=tuple(layers))


def _may_norm_heads(config: ModelConfig, layout: TensorLayout, tensors: Container[str]) -> bool:
    """Whether there are norms of heads in the file, or such as have no weights, or nothing is known of its tensors."""
    if config.attention.qk_norm is not None and not config.attention.qk_norm.learnt:
        return True
    first = next((index for index, layer in enumerate(config.layers) if layer.attends), 0)
    name = layout.layer.get("q_norm", "").format(i=first)
    return f"{layout.embedding}.weight" not in tensors or f"{name}.weight" in tensors


def _has_bias(layout: TensorLayout, tensors: Container[str], *roles: str) -> bool:
    names = (layout.layer[role].format(i=0) for role in roles if role in layout.layer)
    return any(f"{name}.bias" in tensors for name in names)


def _known(families: Mapping[str, Kind], name: str, key: str, source: str) -> Kind:
    if name in families:
        return families[name]
    kinds = {"dense": "dense decoders", "experts": "mixtures of experts", "encoder": "encoder-decoders"}
    listed = {words: _names(families, kind) for kind, words in kinds.items()}
    known = (f"{words} ({', '.join(names)})" for words, names in listed.items() if names)
    raise UnsupportedModelError(
        f"{source} has {key} {name!r:.60}, which is not supported; supported are {', '.join(known)}, each in the forms "
        "that docs/models.md lists."
    )


def _names(families: Mapping[str, object], kind: str) -> list[str]:
    """Those of one kind, without what tells their generations apart."""
    words = (re.match(r"[a-z]+", name) for name, family in families.items() if _kind(family) == kind)
    return sorted({word[0] for word in words if word is not None})


def _kind(family: object) -> str:
    return family.kind if isinstance(family, Family) else "encoder"


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    """Refuse numbers that no decoder of this kind can have together; and count the positions that ropes reach."""
    if config.head_dim < 1:
        raise CheckpointError(
            f"{source} has {config.num_heads} heads for {config.hidden_size} hidden dimensions; fetch the model again."
        )
    counts = {(config.heads_of(layer), config.kv_heads_of(layer)) for layer in (*config.layers, *config.module_layers)}
    for heads, kv_heads in sorted({(config.num_heads, config.num_kv_heads), *counts}):
        if heads % kv_heads:
            raise CheckpointError(
                f"{source} has {heads} heads, which {kv_heads} key-value heads do not divide; fetch the model again."
            )
    value_dim = config.attention.value_dim
    if value_dim is not None and value_dim > config.head_dim:
        raise UnsupportedModelError(
            f"{source} has values of size {value_dim}, wider than keys of size {config.head_dim}, which is not "
            "supported; use another model."
        )
    largest = max((config.head_dim, *map(config.head_dim_of, config.layers)))
    for rope in config.ropes:
        if rope.dim < 2 or rope.dim % 2 or rope.dim > largest:
            raise CheckpointError(
                f"{source} rotates {rope.dim} dimensions of heads of size {largest}; "
                "it must be an even number up to that size."
            )
    positions = config.max_positions
    for rope in config.ropes:
        positions = reach(rope, positions)
    return replace(config, max_positions=positions)
