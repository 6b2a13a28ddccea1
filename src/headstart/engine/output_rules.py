"""What a model's generation settings demand of every output: what it may not begin with, and what it ends with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.engine.constraint import Forcing, Foreseeing, TokenConstraint, Weighing


class OutputRules:
    """A ``TokenConstraint`` by transformers' ``begin_suppress_tokens``, ``forced_bos_token_id`` and
    ``forced_eos_token_id``. A forced token is said whatever else the request or the model's settings forbid.

    Args:
        vocab_size: of the model.
        never_first: tokens that the output does not begin with, or go on with after ``first``.
        last: the only token that may stand at the end of an output that is as long as it may be; None: any.
        length: the most tokens of the output, which are known when it begins.
        inner: what the request demands besides.
        first: the only token that the output may begin with; None: any.
    """

    def __init__(
        self,
        vocab_size: int,
        never_first: Sequence[int],
        last: int | None,
        length: Callable[[], int],
        inner: TokenConstraint | None = None,
        first: int | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._never_first = [token for token in never_first if token < vocab_size]
        self._last = last if last is not None and last < vocab_size else None
        self._first = first if first is not None and first < vocab_size else None
        self._length = length
        self._inner = inner
        self._said = 0

    @property
    def applies(self) -> bool:
        """Whether they demand anything."""
        return bool(self._never_first) or self._last is not None or self._first is not None

    def forced(self, path: Sequence[int]) -> int | None:
        """See ``Forcing``."""
        forced, inner = self._forced_at(self._said + len(path)), cast(object, self._inner)
        return inner.forced(path) if forced is None and isinstance(inner, Forcing) else forced

    def _forced_at(self, place: int) -> int | None:
        if self._last is not None and place == self._length() - 1:
            return self._last
        return self._first if place == 0 else None

    @property
    def _free(self) -> int:
        """The first place where the model has a say."""
        return 0 if self._first is None else 1

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """See ``TokenConstraint``."""
        place = self._said + len(path)
        if (last := self.forced(path)) is not None:
            mask = np.zeros(self._vocab_size, dtype=np.bool_)
            mask[last] = True
            return mask
        mask = np.ones(self._vocab_size, dtype=np.bool_)
        if self._inner is not None:
            mask = self._inner.mask(path).copy()
        if place == self._free:
            mask[self._never_first] = False
        return mask

    def weighed(self, row: Tensor, path: Sequence[int]) -> Tensor:
        """See ``Weighing``."""
        inner: object = self._inner
        if isinstance(inner, Weighing) and self.forced(path) is None:
            return inner.weighed(row, path)
        return row

    def allowed(self, path: Sequence[int]) -> int:
        """See ``TokenConstraint``."""
        count = len(path) if self._inner is None else self._inner.allowed(path)
        for depth, token in enumerate(path[:count]):
            place = self._said + depth
            forced = self._forced_at(place)
            if token != forced and (forced is not None or (place == self._free and token in self._never_first)):
                return depth
        return count

    def foreseen(self, path: Sequence[int], most: int) -> list[int]:
        """See ``Foreseeing``."""
        inner: object = self._inner
        return inner.foreseen(path, most) if isinstance(inner, Foreseeing) else []

    def advance(self, token: int) -> None:
        """See ``TokenConstraint``."""
        self._said += 1
        if self._inner is not None:
            self._inner.advance(token)
