"""A head's files with one thing wrong with them, everything in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.formats import HeadFolder, TrainedHead
from headstart.drafting.method import brought_head_files, head_files
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig

SENSELESS = ("x", -1, 3, 1.5, True, [], [1, "a"], {"a": 1}, 1 << 40)


def read(description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig) -> TrainedHead | None:
    """As ``load_head`` does, without files."""
    files = HeadFolder(Path("head"), description, tensors.keys())
    for each in (*head_files(), *brought_head_files()):
        module = import_module(each.module)
        if (found := module.find(files)) is not None:
            head: TrainedHead = module.read(found, files, tensors, target)
            return head
    return None


def entries(description: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in description.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from entries(value, (*above, key))


def changed(description: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """None: without the entry."""
    new, (key, *below) = dict(description), path
    if below:
        new[key] = changed(new[key], tuple(below), value)
    elif value is None:
        del new[key]
    else:
        new[key] = value
    return new


def check(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, of: object
) -> CheckpointError | None:
    """It is read, or refused in one sentence."""
    refusal = None
    try:
        read(description, tensors, target)
    except CheckpointError as error:
        refusal = error
    assert "\n" not in str(refusal), of
    return refusal


def check_entries(description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig) -> None:
    """Each entry is left out, and replaced by what it cannot be."""
    assert read(description, tensors, target) is not None
    for path in entries(description):
        for value in (None, *SENSELESS):
            check(changed(description, path, value), tensors, target, (path, value))


def check_tensors(description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig) -> None:
    """Each tensor is left out, of another shape, and holds what is no number."""
    for name, tensor in tensors.items():
        rest = {other: each for other, each in tensors.items() if other != name}
        check(description, rest, target, f"without {name}")
        for other in (tensor.new_zeros(()), tensor.new_zeros((*tensor.shape, 2)), tensor.new_zeros((0, 3))):
            check(description, rest | {name: other}, target, (name, other.shape))
        more = torch.cat((tensor, tensor[:1]))
        assert check(description, rest | {name: more}, target, name) is not None, name
        if tensor.is_floating_point():
            last = torch.tensor([tensor.numel() - 1])
            for number in (float("nan"), float("inf")):
                senseless = tensor.flatten().index_fill(0, last, number).view_as(tensor)
                error = check(description, rest | {name: senseless}, target, name)
                assert error is not None, name
                assert "NaN" in str(error)
