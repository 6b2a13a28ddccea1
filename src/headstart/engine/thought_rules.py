"""What holds while a model thinks: a budget of tokens, after which the mark that ends a thought is forced, and a
structure that begins only behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.engine.constraint import Foreseeing, TokenConstraint, Weighing
from headstart.text.answers.forms import ThoughtMarks

NO_BOUND = 1 << 30


class _Place(NamedTuple):
    """Where an output stands."""

    thinking: bool
    over: bool
    """The thought is over, or there is none: what is demanded besides holds from here on."""
    size: int
    """Tokens of the thought so far."""
    forced: int
    """Tokens of the closing mark that were forced so far."""
    tail: bytes
    """The last bytes of the output, fewer than a mark has."""


class ThoughtRules:
    """A ``TokenConstraint`` with the ``forced`` tokens of a ``Forcing`` one.

    Thoughts begin and end by the bytes of their marks, however those are cut into tokens.

    Args:
        vocab_size: of the model.
        marks: see there.
        thinking: the output begins inside a thought.
        may_think: it may begin with the opening mark, whatever ``inner`` says.
        budget: tokens of each thought at most, before its closing mark; None: any number.
        inner: what is demanded of the output behind the thought; None: nothing.
        end_tokens: what ends an output, which no thought may where ``inner`` demands something.
    """

    def __init__(
        self,
        vocab_size: int,
        marks: ThoughtMarks,
        thinking: bool,
        may_think: bool,
        budget: int | None,
        inner: TokenConstraint | None,
        end_tokens: Sequence[int] = (),
    ) -> None:
        self._vocab_size = vocab_size
        self._marks = marks
        self._may_think = may_think and marks.opening_id is not None
        self._budget = NO_BOUND if budget is None else budget
        self._inner = inner
        self._end_tokens = [token for token in end_tokens if token < vocab_size]
        begins_over = not thinking and not (inner is not None and self._may_think)
        self._place = _Place(thinking, begins_over, 0, 0, b"")
        self._longest = max(len(marks.opening), len(marks.closing)) - 1

    @property
    def free(self) -> int:
        """Tokens that may follow the output for which nothing is demanded, whatever they are."""
        place = self._place
        if self._inner is not None or place.forced:
            return 0
        return self._budget - place.size if place.thinking else self._budget

    def forced(self, path: Sequence[int]) -> int | None:
        """See ``Forcing``."""
        return self._forced_at(self._walked(path)[0])

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """See ``TokenConstraint``."""
        place, begins = self._walked(path)
        if (token := self._forced_at(place)) is not None:
            mask = np.zeros(self._vocab_size, dtype=np.bool_)
            mask[token] = True
            return mask
        if place.thinking or self._inner is None:
            mask = np.ones(self._vocab_size, dtype=np.bool_)
            if self._inner is not None:
                mask[self._end_tokens] = False
            return mask
        mask = self._inner.mask(path[begins:])
        if not place.over:
            mask = mask.copy()
            mask[self._marks.opening_id] = True
        return mask

    def weighed(self, row: Tensor, path: Sequence[int]) -> Tensor:
        """See ``Weighing``."""
        inner: object = self._inner
        place, begins = self._walked(path)
        if isinstance(inner, Weighing) and place.over and not place.thinking:
            return inner.weighed(row, path[begins:])
        return row

    def allowed(self, path: Sequence[int]) -> int:
        """See ``TokenConstraint``."""
        place = self._place
        for depth, token in enumerate(path):
            forced = self._forced_at(place)
            if forced is not None and token != forced:
                return depth
            if place.thinking and self._inner is not None and token in self._end_tokens:
                return depth
            if place.over and self._inner is not None:
                return depth + self._inner.allowed(path[depth:])
            after = self._after(place, token)
            if not place.thinking and not place.over and not after.thinking and self._inner is not None:
                # Nothing is thought: the structure begins with this token.
                return depth + self._inner.allowed(path[depth:])
            place = after
        return len(path)

    def foreseen(self, path: Sequence[int], most: int) -> list[int]:
        """See ``Foreseeing``: the closing mark where it is forced, then what is demanded behind it."""
        place, begins = self._walked(path)
        if self._forced_at(place) is not None:
            return [*self._marks.closing_ids[place.forced :]][:most]
        inner: object = self._inner
        if place.over and not place.thinking and isinstance(inner, Foreseeing):
            return inner.foreseen(path[begins:], most)
        return []

    def advance(self, token: int) -> None:
        """See ``TokenConstraint``."""
        before = self._place
        self._place = self._after(before, token)
        if self._inner is not None and (before.over or not (before.thinking or self._place.thinking)):
            self._inner.advance(token)

    def _walked(self, path: Sequence[int]) -> tuple[_Place, int]:
        """Where the output and ``path`` stand, and the place in the path where ``inner`` begins."""
        place, begins = self._place, 0
        for depth, token in enumerate(path):
            after = self._after(place, token)
            if after.over and not place.over:
                begins = depth + place.thinking
            place = after
        return place, begins if place.over else len(path)

    def _forced_at(self, place: _Place) -> int | None:
        if place.thinking and (place.forced or place.size >= self._budget):
            return self._marks.closing_ids[min(place.forced, len(self._marks.closing_ids) - 1)]
        return None

    def _after(self, place: _Place, token: int) -> _Place:
        """Where an output stands after one token more."""
        if self._inner is not None and not place.thinking:
            if place.over or token != self._marks.opening_id:
                return _Place(False, True, 0, 0, b"")
            return _Place(True, False, 0, 0, b"")
        tail = place.tail + self._marks.spell(token)
        mark = self._marks.closing if place.thinking else self._marks.opening
        if mark in tail:
            return _Place(not place.thinking, place.thinking, 0, 0, b"")
        kept = tail[max(len(tail) - self._longest, 0) :]
        if not place.thinking:
            return _Place(False, place.over, 0, 0, kept)
        if self._forced_at(place) is not None:
            forced = place.forced + 1
            # A mark that was cut otherwise before is whole with its last token at the latest.
            over = forced == len(self._marks.closing_ids)
            return _Place(not over, over, place.size, 0 if over else forced, b"" if over else kept)
        return _Place(True, False, place.size + 1, 0, kept)
