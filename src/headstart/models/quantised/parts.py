"""What the readers of quantised folders share: the tensors of a module, and integers packed into 32-bit words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.derived import Derived, OpenWeights


@dataclass
class Found:
    """What a reader makes of a folder."""

    derived: dict[str, Derived] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    """Stored tensors that are of no use by themselves."""


@dataclass(frozen=True)
class Module:
    """The stored tensors of one quantised module, by the last part of their names."""

    name: str
    weights: OpenWeights = field(repr=False)

    def __contains__(self, leaf: str) -> bool:
        return self.full(leaf) in self.weights.shapes()

    def full(self, leaf: str) -> str:
        """Whole name of one of its tensors."""
        return f"{self.name}.{leaf}"

    def shape(self, leaf: str) -> tuple[int, ...]:
        """Of one of its tensors.

        Raises:
            CheckpointError: it is not there.
        """
        shape = self.weights.shapes().get(self.full(leaf))
        if shape is None:
            raise self.fault(f"lacks {leaf}")
        return shape

    def matrix(self, leaf: str) -> tuple[int, int]:
        """``shape`` of one that has rows and columns, none of them empty.

        Raises:
            CheckpointError: it has not.
        """
        shape = self.shape(leaf)
        if len(shape) != 2 or min(shape) < 1:
            raise self.fault(f"has {leaf} of shape {list(shape)}, which is no matrix")
        rows, columns = shape
        return rows, columns

    def require(self, leaf: str, shape: tuple[int, ...], *types: str) -> None:
        """Refuse a tensor of another shape, or of none of the stored types (where any are given).

        Raises:
            CheckpointError: it is another.
        """
        if self.shape(leaf) != shape:
            raise self.fault(f"has {leaf} of shape {list(self.shape(leaf))} instead of {list(shape)}")
        stored = self.stored_type(leaf)
        if types and stored not in types:
            raise self.fault(f"has {leaf} of type {stored} instead of {' or '.join(types)}")

    def stored_type(self, leaf: str) -> str:
        """By the name that the file gives it."""
        return self.weights.stored(self.full(leaf)).type

    def read(self, leaf: str) -> Tensor:
        """One of its tensors as it is stored."""
        return self.weights.read(self.full(leaf))

    def fault(self, what: str) -> CheckpointError:
        """Of its tensors, as a sentence."""
        return CheckpointError(f"module {self.name!r:.100} {what}; fetch or convert the model again.")


def modules(weights: OpenWeights, leaf: str) -> Iterator[Module]:
    """Those that have a tensor of this name."""
    ending = f".{leaf}"
    for name in weights.shapes():
        if name.endswith(ending):
            yield Module(name.removesuffix(ending), weights)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """int32 [..., word * 32 / bits]: the unsigned integers in the last axis of ``words``, the lowest bits first; of
    three bits some lie in two words."""
    words = words.to(torch.int32)
    if bits == 3:
        octets = words.contiguous().view(torch.uint8).view(*words.shape[:-1], -1, bits).to(torch.int32)
        words = octets[..., 0] | octets[..., 1] << 8 | octets[..., 2] << 16
    held = 24 if bits == 3 else 32
    shifts = torch.arange(0, held, bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)


def setting(settings: Mapping[str, Any], key: str, default: int, *allowed: int) -> int:
    """A whole number of a ``quantization_config``.

    Raises:
        CheckpointError: it is another than those allowed.
    """
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or (allowed and value not in allowed):
        meant = " or ".join(map(str, allowed)) or "a whole number"
        raise CheckpointError(f"quantization_config: {key} is {value!r:.40}, but must be {meant}; use another model.")
    return value


def own_settings(settings: Mapping[str, Any], key: str, module: str) -> Mapping[str, Any]:
    """Those of one module: changed by the first entry of ``settings[key]`` whose regular expression its name begins
    with; "+:" before one says no more.

    Raises:
        CheckpointError: the entries are not of this form.
    """
    entries = settings.get(key) or {}
    try:
        for pattern, changes in entries.items():
            if re.match(pattern.removeprefix("+:"), module):
                return {**settings, **changes}
    except (AttributeError, TypeError, re.error) as error:
        raise CheckpointError(
            f"quantization_config: {key} must be an object of settings by regular expressions, but is not ({error}); "
            "fetch the model again."
        ) from error
    return settings
