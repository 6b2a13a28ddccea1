"""Which times a speech recogniser may say, and when it must say one (Radford et al. 2022, section 2.3).

Times are tokens behind all others, in ascending order. A piece of speech stands between two of them, and the next piece
begins with a time of its own: ``<0.00> text <2.40><2.40> text <5.00>``. The rules are those of openai/whisper
(``decoding.py``, ``ApplyTimestampRules``) as transformers' ``WhisperTimeStampLogitsProcessor`` has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class _Place(NamedTuple):
    """What counts of an output so far."""

    length: int
    timed: bool
    """The last token is a time."""
    was_timed: bool
    """The one before it is a time, or is not there."""
    latest: int | None
    """The last time that was said."""

    def after(self, token: int, first_time: int) -> _Place:
        timed = token >= first_time
        return _Place(self.length + 1, timed, not self.length or self.timed, token if timed else self.latest)


_START = _Place(0, False, True, None)


class TimestampRules:
    """A ``TokenConstraint`` and ``Weighing`` of one output.

    Args:
        vocab_size: of the model.
        first_time: the token of time 0; all behind it are times.
        end: the end-of-sequence token; those before it are text.
        silent: the token that says that there are no times, which is never said.
        latest_start: how many times after the first one an output may begin with; None: any.
        never: tokens that are never said, so that they do not count among the text.
    """

    def __init__(
        self,
        vocab_size: int,
        first_time: int,
        end: int,
        silent: int,
        latest_start: int | None = None,
        never: Iterable[int] = (),
    ) -> None:
        self._vocab_size = vocab_size
        self._first_time = first_time
        self._end = end
        self._silent = silent
        self._latest_start = latest_start
        self._never = torch.tensor(sorted(token for token in never if token < vocab_size), dtype=torch.long)
        self._said = _START

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """See ``TokenConstraint``."""
        place, first = self._place(path), self._first_time
        mask = np.ones(self._vocab_size, dtype=np.bool_)
        mask[self._silent] = False
        if not place.length:
            mask[:first] = False
            if self._latest_start is not None:
                mask[first + self._latest_start + 1 :] = False
            return mask
        if place.timed and place.was_timed:
            mask[first:] = False
        elif place.timed:
            mask[: self._end] = False
        if place.latest is not None:
            # The time that ends a piece of speech may come again where the next one begins, and nowhere else.
            mask[first : place.latest + (not place.timed or place.was_timed)] = False
        return mask

    def allowed(self, path: Sequence[int]) -> int:
        """See ``TokenConstraint``."""
        place = self._said
        for depth, token in enumerate(path):
            if not self._may(token, place):
                return depth
            place = place.after(token, self._first_time)
        return len(path)

    def advance(self, token: int) -> None:
        """See ``TokenConstraint``."""
        self._said = self._said.after(token, self._first_time)

    def weighed(self, row: Tensor, path: Sequence[int]) -> Tensor:
        """See ``Weighing``: where times together are likelier than every other token, a time is said."""
        scores = row.float().index_fill(0, self._never.to(row.device), -torch.inf).log_softmax(-1)
        times = scores[self._first_time :].logsumexp(-1)
        if not bool(times > scores[: self._first_time].max()):
            return row
        row = row.clone()
        row[: self._first_time] = -torch.inf
        return row

    def _place(self, path: Sequence[int]) -> _Place:
        place = self._said
        for token in path:
            place = place.after(token, self._first_time)
        return place

    def _may(self, token: int, place: _Place) -> bool:
        first = self._first_time
        timed = token >= first
        if not place.length:
            return timed and (self._latest_start is None or token <= first + self._latest_start)
        if token == self._silent or (place.timed and (timed if place.was_timed else token < self._end)):
            return False
        return not timed or place.latest is None or token >= place.latest + (not place.timed or place.was_timed)
