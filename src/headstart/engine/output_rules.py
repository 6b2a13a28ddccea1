"""What a model's generation settings demand of every output: what it may not begin with, and what it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.engine.constraint import TokenConstraint


class Length(Protocol):
    """The most tokens of an output."""

    @property
    def max_tokens(self) -> int: ...


class Output(Protocol):
    """An output that grows, and what it may grow to."""

    @property
    def num_output(self) -> int: ...
    @property
    def stops(self) -> Length: ...


@dataclass(frozen=True)
class OutputRules:
    """A ``TokenConstraint`` of an encoder-decoder model; transformers' ``begin_suppress_tokens`` and
    ``forced_eos_token_id``. Beams share none: each follows its own output.

    Args:
        vocab_size: of the model.
        never_first: tokens that the output does not begin with.
        last: the only token that may stand at the end of an output that is as long as it may be; None: any.
        inner: what the request demands besides.
        output: what is followed.
    """

    vocab_size: int
    never_first: tuple[int, ...] = ()
    last: int | None = None
    inner: TokenConstraint | None = None
    output: Output | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "never_first", tuple(t for t in self.never_first if t < self.vocab_size))
        if self.last is not None and self.last >= self.vocab_size:
            object.__setattr__(self, "last", None)

    def following(self, output: Output) -> OutputRules:
        """The same for one output."""
        return replace(self, output=output)

    @property
    def applies(self) -> bool:
        """Whether they demand anything."""
        return bool(self.never_first) or self.last is not None

    def _place(self, depth: int) -> int:
        """Of the output's token so far behind what was committed."""
        assert self.output is not None
        return self.output.num_output + depth

    def _ends(self, place: int) -> bool:
        assert self.output is not None
        return self.last is not None and place == self.output.stops.max_tokens - 1

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """See ``TokenConstraint``."""
        place = self._place(len(path))
        if self._ends(place):
            only: NDArray[np.bool_] = np.arange(self.vocab_size) == self.last
            return only
        mask = np.ones(self.vocab_size, dtype=np.bool_) if self.inner is None else self.inner.mask(path).copy()
        if place == 0:
            mask[list(self.never_first)] = False
        return mask

    def allowed(self, path: Sequence[int]) -> int:
        """See ``TokenConstraint``."""
        for depth, token in enumerate(path):
            place = self._place(depth)
            if (place == 0 and token in self.never_first) or (self._ends(place) and token != self.last):
                return depth if self.inner is None else min(depth, self.inner.allowed(path[:depth]))
        return len(path) if self.inner is None else self.inner.allowed(path)

    def advance(self, token: int) -> None:
        """See ``TokenConstraint``."""
        if self.inner is not None:
            self.inner.advance(token)
