"""Heads that others published, for Headstart's own folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.files import PICKLED_FILE, read_description, read_tensors
from headstart.drafting.heads.formats import TrainedHead
from headstart.drafting.method import tensor_files
from headstart.drafting.methods.eagle.files import named_layers
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import CheckpointError, ConfigError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import Fields
from headstart.models.files import exists, local_path
from headstart.models.locating import fetch, is_hub_id

LayerNumbers = Literal["auto", "inputs", "outputs"]
"""What the layer numbers in an EAGLE-3 head's description mean: the layer that reads a state (vLLM), or the one that
writes it (SGLang, SpecForge, ModelOpt)."""

_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", PICKLED_FILE)


def locate_head(name: str, revision: str | None = None) -> Path:
    """The directory of a head: a local one, or a repository of the hub, downloaded where it is not cached yet.

    Raises:
        CheckpointError: there is none of this name, or it cannot be fetched.
        ConfigError: ``revision`` was given for a local path.
    """
    path = local_path(name)
    if exists(path):
        if revision is not None:
            raise ConfigError(f"revision is {revision!r}, but head {name!r} is a local path; leave revision out.")
        return path
    if not is_hub_id(name):
        raise CheckpointError(f"there is no {name!r}; name the directory of a head, or a hub id (org/name).")
    return fetch(
        name, revision, "check the name, or download it elsewhere and name its directory", (*_FILES, *tensor_files())
    )


def import_head(directory: Path, target: ModelConfig, layer_numbers: LayerNumbers = "auto") -> TrainedHead:
    """A head in any format that is read.

    Args:
        layer_numbers: "auto" takes the usual layers for what they are, whichever way they are numbered, and other
            numbers for vLLM's.

    Raises:
        CheckpointError: as ``load_head``; or the layers' numbers are to mean something, and the head names none.
    """
    head = load_head(directory, target)
    if layer_numbers == "auto":
        return head
    is_named = isinstance(head, EagleHead) and directory.is_dir()
    numbers = named_layers(Fields(read_description(directory), "config.json")) if is_named else ()
    if not numbers:
        raise CheckpointError(f"{directory} names no layers of its target; leave out what their numbers mean.")
    assert isinstance(head, EagleHead)
    taps = tuple(number + (layer_numbers == "outputs") for number in numbers)
    if max(taps) > target.num_layers:
        raise CheckpointError(
            f"{directory} reads layers up to {max(numbers)}, and this target has {target.num_layers}: their numbers "
            "mean something else, or the target is another."
        )
    head.config = replace(head.config, taps=taps)
    return head


def stored_dtype(directory: Path) -> torch.dtype:
    """Of a head's matrices, the widest: what keeps every number of them, also of blocks in GGUF."""
    if directory.is_file():
        return torch.float32
    found = {
        tensor.dtype
        for tensor in read_tensors(directory, tensor_files).values()
        if tensor.dim() > 1 and tensor.is_floating_point()
    }
    return next(iter(found)) if len(found) == 1 else torch.float32
