"""Assistants in GGUF, as llama.cpp's converter writes them (src/models/gemma4-assistant.cpp, conversion/gemma.py): a
Gemma 4 whose layers have no keys and values, and two projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headstart.drafting.heads.formats import HeadFolder
from headstart.models.config import ModelConfig
from headstart.models.families import config_from_gguf
from headstart.models.families.fields import Fields

ARCHITECTURE = "gemma4-assistant"
_LAYERS = "gemma4"
"""The architecture whose entries it has."""
_COUNT = "nextn_predict_layers"
"""All of its layers are counted there."""
_NAMES = {
    "nextn.pre_projection.weight": "pre_projection.weight",
    "nextn.post_projection.weight": "post_projection.weight",
    "masked_embd_centroids.weight": "masked_embedding.centroids.weight",
    "masked_embd_ordering": "masked_embedding.token_ordering",
    "masked_embd_ordering.weight": "masked_embedding.token_ordering",
}
_READ_AT_ONCE = 32
"""Clusters of tokens that a state reads, which no entry says."""


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands around the layers by its names in folders; the rest keeps its own."""
    return {_NAMES.get(name, name): tensor for name, tensor in tensors.items()}


def layers_in(files: HeadFolder, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """A Gemma 4 of the file's layers.

    Raises:
        CheckpointError: an entry is missing or senseless.
    """
    entries: dict[str, Any] = {
        f"{_LAYERS}{key.removeprefix(ARCHITECTURE)}" if key.startswith(f"{ARCHITECTURE}.") else key: value
        for key, value in files.description.items()
        if key != f"{ARCHITECTURE}.{_COUNT}"
    }
    # That all of its layers read others' keys is what makes it an assistant.
    entries |= {"general.architecture": _LAYERS, f"{_LAYERS}.attention.shared_kv_layers": 0}
    return config_from_gguf(entries, shapes, files.source)


def target_size(files: HeadFolder) -> int:
    """Hidden size of the model that it guesses for.

    Raises:
        CheckpointError: no entry says it.
    """
    return Fields(files.description, files.source, f"{ARCHITECTURE}.").integer("embedding_length_out")


def clusters_of(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Clusters of its output head, and how many a state reads; 0: there are none."""
    centroids = tensors.get(_NAMES["masked_embd_centroids.weight"])
    count = 0 if centroids is None or not centroids.dim() else len(centroids)
    return count, min(_READ_AT_ONCE, count)
