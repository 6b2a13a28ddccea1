"""Tensors that are made of a file's: dequantised, or changed by an adapter. Each is made when it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.files import FileStamp
from headstart.models.stored import StoredTensor
from headstart.models.weights import TensorSource


class OpenWeights(TensorSource, Protocol):
    """The tensors of an open model's files."""

    @property
    def stamps(self) -> tuple[FileStamp, ...]:
        """Of all files."""
        ...

    def digest(self) -> str:
        """Identity of the weights, see ``WeightsDigest``."""
        ...


@dataclass(frozen=True)
class OwnRows:
    """A matrix in blocks of its file's own numbers, see ``quantised.rows``."""

    type: str
    make: Callable[[int | None], NDArray[np.uint8]] = field(repr=False)
    """As ``StoredTensor.make``."""
    turned: bool = False
    """As ``StoredTensor.turned``."""


@dataclass(frozen=True)
class Derived:
    """One tensor that is made of others."""

    shape: tuple[int, ...]
    type: str
    """What it holds, by a name that no file's own type has: "INT4", "MERGED"."""
    bits: float
    """What a weight takes in the file, with its share of scales."""
    read: Callable[[], Tensor] = field(repr=False)
    """Makes it, in floating-point numbers."""
    read_part: Callable[[int], Tensor] | None = field(default=None, repr=False)
    """Makes one part of its first axis; None: the whole is made for it."""
    own_rows: Callable[[], OwnRows | None] | None = field(default=None, repr=False)
    """What keeps the file's own numbers, where something does; asked when weights are loaded, not before."""


class DerivedTensors:
    """A file's tensors, some of them replaced by what is made of them.

    Args:
        base: the file's.
        derived: by their names.
        used: the file's names that are of no use by themselves.
        also: identity of what else takes part; empty: nothing does.
        stamps: of further files.
    """

    def __init__(
        self,
        base: OpenWeights,
        derived: Mapping[str, Derived],
        used: Collection[str] = (),
        also: str = "",
        stamps: tuple[FileStamp, ...] = (),
    ) -> None:
        self._base = base
        self._derived = dict(derived)
        kept = {name: shape for name, shape in base.shapes().items() if name not in used}
        self._shapes = kept | {name: each.shape for name, each in self._derived.items()}
        self._also = also
        self._stored: dict[str, StoredTensor] = {}
        self.stamps = (*base.stamps, *stamps)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, index: int | None = None) -> Tensor:
        """One tensor, or its part at ``index`` of its first axis, made of the file's where it is derived.

        Raises:
            CheckpointError: there is no such tensor, or it cannot be made.
        """
        derived = self._derived.get(name)
        if derived is None:
            return self._base.read(name, index)
        if index is None:
            return derived.read()
        return derived.read()[index] if derived.read_part is None else derived.read_part(index)

    def stored(self, name: str) -> StoredTensor:
        """One tensor as the file holds it; of a derived one its own numbers in blocks, if there are such, else no more
        than its type and shape.

        Raises:
            CheckpointError: there is no such tensor.
        """
        derived = self._derived.get(name)
        if derived is None:
            return self._base.stored(name)
        if name not in self._stored:
            stored = StoredTensor(derived.type, derived.shape, np.zeros(0, np.uint8), in_blocks=True)
            own = None if derived.own_rows is None else derived.own_rows()
            if own is not None:
                stored = replace(stored, type=own.type, make=own.make, turned=own.turned)
            self._stored[name] = stored
        return self._stored[name]

    def stored_bits(self, name: str) -> float:
        """What a weight of this tensor takes in the file."""
        derived = self._derived.get(name)
        return self._base.stored_bits(name) if derived is None else derived.bits

    def digest(self) -> str:
        """Of the file's tensors, and of what else takes part."""
        own = self._base.digest()
        return hashlib.sha256((own + self._also).encode()).hexdigest() if self._also else own
