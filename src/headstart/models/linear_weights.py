"""Weights of one norm and of one linear layer, which all parts of a decoder are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from torch import Tensor

from headstart.models.stored import Matrix


class Held:
    """A field that is a tensor for whoever reads it, and may be a ``Matrix`` that reads it from a file each time."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Tensor: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Tensor: ...
    def __get__(self, instance: object | None, owner: type) -> Tensor:
        if instance is None:
            raise AttributeError  # to a dataclass: there is no default
        held: Tensor | Matrix = instance.__dict__[self._name]
        return held if isinstance(held, Tensor) else held.tensor()

    def __set__(self, instance: object, value: Tensor | Matrix) -> None:
        instance.__dict__[self._name] = value


@dataclass(frozen=True)
class NormWeights:
    """An RMS or layer norm."""

    weight: Tensor
    """[hidden] (or [head_dim] for q/k norms)."""
    bias: Tensor | None = None
    """[hidden], layer norm only."""


@dataclass(frozen=True)
class LinearWeights:
    """A matrix and its bias."""

    weight: Held = Held()
    """[out, in]; read anew each time where it is a file's."""
    bias: Tensor | None = None
    """[out]."""
    stored_bits: float = 16.0
    """What a weight takes in the file that it comes from; of several matrices in one, the most."""

    @property
    def matrix(self) -> Tensor | Matrix:
        """``weight``, unread."""
        held: Tensor | Matrix = self.__dict__["_weight"]
        return held
