"""Assistants in files, as transformers writes them (``Gemma4AssistantForCausalLM`` and its unified kin), or in GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.drafting.heads.files import require_numbers
from headstart.drafting.heads.formats import FoundHead, HeadFolder, TrainedHead, WrittenHead, no_place
from headstart.drafting.heads.gguf_heads import ARCHITECTURE
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.assistant import gguf_formats
from headstart.drafting.methods.assistant.head import KIND, AssistantHead, Clusters
from headstart.errors import CheckpointError
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.families import config_from_hf
from headstart.models.families.base import CheckpointKind
from headstart.models.families.fields import Fields
from headstart.models.stored import StoredTensor, stored_tensor
from headstart.models.weight_loading import load_weights, with_factors

_TYPES = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}
"""Of assistants -> of their layers."""
_FAMILIES = tuple(text.removesuffix("_text") for text in _TYPES.values())
_ARCHITECTURES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
_GGUF = "gguf"
_BEFORE, _AFTER = "pre_projection.weight", "post_projection.weight"
_CENTROIDS, _ORDER = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
_EMBEDDINGS: Mapping[CheckpointKind, str] = {"hf": "model.embed_tokens.weight", "gguf": "token_embd.weight"}
_KINDS: Mapping[str, CheckpointKind] = {KIND: "hf", _GGUF: "gguf"}
_MEANT = "name the assistant of this model, or another drafter"
_FEW = 32
"""Rows of a table that nobody reads."""


def find(files: HeadFolder) -> FoundHead | None:
    """Whether these files are an assistant."""
    if files.description.get(ARCHITECTURE) == gguf_formats.ARCHITECTURE:
        return FoundHead(_GGUF, KIND)
    architectures = files.description.get("architectures")
    named = isinstance(architectures, list) and any(each in _ARCHITECTURES for each in architectures)
    return FoundHead(KIND, KIND) if named or str(files.description.get("model_type")) in _TYPES else None


def read(found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig) -> AssistantHead:
    """An assistant for ``target``.

    Raises:
        CheckpointError: it was made for another model, its description is senseless, or tensors are missing, surplus or
            mis-shaped, or hold what is no number.
    """
    require_numbers(tensors, files.source)
    fields, kind = Fields(files.description, files.source), _KINDS[found.form]
    if kind == "gguf":
        tensors = gguf_formats.named(tensors)
        require_target(gguf_formats.target_size(files), target, files.source)
        described = gguf_formats.layers_in(files, _Tensors(tensors).shapes())
        count, read_at_once = gguf_formats.clusters_of(tensors)
    else:
        require_target(fields.integer("backbone_hidden_size", 1536), target, files.source)
        described = _described(fields)
        count = fields.integer("num_centroids", 2048) if fields.flag("use_ordered_embeddings", False) else 0
        read_at_once = fields.integer("centroid_intermediate_top_k", 32, maximum=count) if count else 0
    config = reading_target(described, target, files.source)
    hidden, backbone = config.hidden_size, target.hidden_size
    own: dict[str, tuple[int, ...]] = {_BEFORE: (hidden, 2 * backbone), _AFTER: (backbone, hidden)}
    if count:
        if config.vocab_size % count:
            raise fields.bad("num_centroids", count, f"a divisor of {config.vocab_size} tokens")
        own |= {_CENTROIDS: (count, hidden), _ORDER: (config.vocab_size,)}
    for name, shape in own.items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            held = f"has {name} {list(tensors[name].shape)}" if name in tensors else f"lacks {name}"
            raise CheckpointError(f"{files.source} {held}, where {list(shape)} is meant; fetch the assistant again.")
    rest = {name: tensor for name, tensor in tensors.items() if name not in own}
    clusters = None
    if count:
        clusters = _clusters(tensors, rest.get(_EMBEDDINGS[kind]), config, read_at_once, files.source)
        # The whole head is read by clusters, so that passes need none.
        rest = {name: table[:_FEW] if name == _EMBEDDINGS[kind] else table for name, table in rest.items()}
        config = replace(config, vocab_size=min(_FEW, config.vocab_size))
    in_full = tensors[_BEFORE].dtype == torch.float32
    config = with_factors(_Tensors(rest), config, kind)
    weights = load_weights(_Tensors(rest), config, kind, torch.float32 if in_full else torch.bfloat16)
    return AssistantHead(config, weights, tensors[_BEFORE], tensors[_AFTER], clusters)


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """Nobody here makes assistants.

    Raises:
        CheckpointError: always.
    """
    raise no_place(KIND, form, ())


def require_target(backbone: int, target: ModelConfig, source: str) -> None:
    """Refuse an assistant for a model of hidden size ``backbone`` that this one is not.

    Raises:
        CheckpointError: so it is.
    """
    if target.family.removesuffix("_seeing") not in _FAMILIES:
        raise CheckpointError(
            f"{source} is an assistant of Gemma 4, and this model is of another kind ({target.family}); use a drafter "
            "for this one."
        )
    if backbone != target.hidden_size:
        raise CheckpointError(
            f"{source} is an assistant for a model with hidden size {backbone}, and this one has "
            f"{target.hidden_size}; {_MEANT}."
        )


def _described(fields: Fields) -> ModelConfig:
    """The layers that a folder describes.

    Raises:
        CheckpointError: they are senseless.
    """
    text = fields.within("text_config")
    if text is None:
        raise fields.missing("text_config")
    # That all of its layers read others' keys is what makes it an assistant; the description has layers of its own.
    described = {**text.entries, "num_kv_shared_layers": 0, "model_type": text.text("model_type", "")}
    described["model_type"] = described["model_type"] or _TYPES.get(fields.text("model_type", ""), "gemma4_text")
    return config_from_hf(described, fields.source)


def reading_target(config: ModelConfig, target: ModelConfig, source: str) -> ModelConfig:
    """The assistant's layers, each reading the target's last one of its kind that keeps keys and values.

    Raises:
        CheckpointError: it was made for another model.
    """
    if config.layer_inputs is not None or config.experts is not None:
        raise CheckpointError(f"{source} has inputs of layers or experts, which no assistant has; fetch it again.")
    if config.vocab_size != target.vocab_size:
        raise CheckpointError(
            f"{source} is an assistant that says {config.vocab_size} tokens, and this model has {target.vocab_size}; "
            f"{_MEANT}."
        )
    layers = tuple(_reading(layer, config, target, source) for layer in config.layers)
    return replace(config, layers=layers, head=replace(config.head, softcap=None))


def _reading(layer: LayerConfig, config: ModelConfig, target: ModelConfig, source: str) -> LayerConfig:
    """A layer that reads the target's keys and values."""
    kinds = [(index, each) for index, each in enumerate(target.layers) if each.attends and each.reads is None]
    alike = [(index, each) for index, each in kinds if (each.window is None) == (layer.window is None)]
    kind = "full attention" if layer.window is None else "a window"
    if not alike:
        raise CheckpointError(f"{source} has a layer with {kind}, and this model has none; name this model's own one.")
    index, read = alike[-1]
    size, kv_heads = target.head_dim_of(read), target.kv_heads_of(read)
    if config.head_dim_of(layer) != size or config.num_heads % kv_heads:
        raise CheckpointError(
            f"{source} has {config.num_heads} heads of size {config.head_dim_of(layer)} in layers with {kind}, and "
            f"this model keeps {kv_heads} of size {size}; name the assistant of this model."
        )
    return replace(layer, reads=index, head_dim=size, num_kv_heads=kv_heads, values_are_keys=False)


def _clusters(
    tensors: Mapping[str, Tensor], head: Tensor | None, config: ModelConfig, read_at_once: int, source: str
) -> Clusters:
    order = tensors[_ORDER]
    if head is None or tuple(head.shape) != (config.vocab_size, config.hidden_size):
        raise CheckpointError(f"{source} lacks its embedding, or that is mis-shaped; fetch the assistant again.")
    if order.is_floating_point() or not torch.equal(order.long().sort().values, torch.arange(config.vocab_size)):
        raise CheckpointError(f"{source}: {_ORDER} does not name each token once; fetch the assistant again.")
    centroids = tensors[_CENTROIDS]
    return Clusters(centroids, order.long().view(len(centroids), -1), read_at_once, head)


@dataclass(frozen=True)
class _Tensors:
    """Tensors in memory, as a ``TensorSource``."""

    held: Mapping[str, Tensor]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.held.items()}

    def read(self, name: str, index: int | None = None) -> Tensor:
        return self.held[name] if index is None else self.held[name][index]

    def stored(self, name: str) -> StoredTensor:
        return stored_tensor(self.held[name])

    def stored_bits(self, name: str) -> float:
        return 8.0 * self.held[name].itemsize
