"""Beam search, pure: which paths are searched on, which have ended, and when no better one can come.

The semantics are those of transformers' ``generate(num_beams=...)`` (5.x): float32 scores; a step looks at the best
continuations of all beams together; a path that ends counts only if it is among the first ``width`` of them, and gives
its place to the next best that goes on; scores of ended paths are divided by length to the power of ``length_penalty``.

Ties, which transformers leave to ``torch.topk``: the better beam's continuation comes first, and of one beam the lower
token id; of ended paths with equal scores the one that ended earlier stays.

Guessing ahead (Leviathan et al. 2023, appendix A.4): a step needs the rows of all beams that can matter. Whoever has
computed rows of guesses hands them in step by step, for as long as a step can be decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class BeamRules:
    """What one search goes by."""

    width: int
    """Beams that are searched, and ended paths that are kept."""
    max_tokens: int
    """Tokens of a path at most."""
    end_tokens: frozenset[int] = frozenset()
    """A path that says one of these has ended."""
    length_penalty: float = 1.0
    """Scores of ended paths are divided by length ** this: above 0 favours long ones."""
    early_stopping: EarlyStopping = False
    """True: stop as soon as ``width`` paths have ended. False: stop when the best beam, at its present length, falls
    behind the worst of them. "never": at the length that favours it most, so that no better path is missed."""


class Watch(Protocol):
    """Sees what ends a path besides its last token: a stop string in its text."""

    @property
    def ended(self) -> bool:
        """Whether the path has ended."""
        ...

    def after(self, token: int) -> Watch:
        """The watch of the path that goes on with a token. This one stays as it is."""
        ...


@dataclass(eq=False, slots=True)
class Path:
    """A path of the search: its last token after the path before it."""

    parent: Path | None
    token: int
    beam: int
    """Which of the beams it continues, as they stood before the step."""
    score: np.float32
    """The sum of its tokens' log-probabilities; of an ended path, divided by the power of its length."""
    watch: Watch | None = field(default=None)
    note: Any = field(default=None)
    """Whatever the searcher wants to remember of the step."""

    def line(self) -> list[Path]:
        """The paths from the first token down to this one."""
        found: list[Path] = []
        path: Path | None = self
        while path is not None and path.parent is not None:
            found.append(path)
            path = path.parent
        return found[::-1]

    @property
    def tokens(self) -> list[int]:
        return [path.token for path in self.line()]


class BeamSearch:
    """The search after one prompt.

    ``live`` holds the beams, the best first; ``ended`` the ended paths, the best first.

    Args:
        rules: what it goes by.
        watch: of the empty path; None: nothing but tokens ends paths.
    """

    def __init__(self, rules: BeamRules, watch: Watch | None = None) -> None:
        self.rules = rules
        self.steps = 0
        self.live = [Path(None, -1, 0, np.float32(0), watch)]
        self.ended: list[Path] = []

    @property
    def done(self) -> bool:
        return not self.live

    def step(self, rows: Sequence[Row | None], may_rise: bool = False) -> list[Path] | None:
        """Search one token further.

        Args:
            rows: [beam] log-probabilities of the token after each, float32 [vocab], -inf for what may not be said;
                None: not known. A beam without a row is left behind if it could not be among the next ones whatever
                its row says.
            may_rise: rows may be above 0 (after a bonus to some tokens), so that nothing is known of missing ones.

        Returns:
            The paths that have newly ended and are kept; None: too few rows are known to decide, nothing was changed.
        """
        rules, length = self.rules, self.steps + 1
        missing = [path.score for path, row in zip(self.live, rows, strict=True) if row is None]
        if missing and may_rise:
            return None
        last = length >= rules.max_tokens
        count = (1 + max(1, len(rules.end_tokens))) * rules.width
        while True:
            candidates = self._candidates(rows, count)
            ends = [last or self._ends(path) for path in candidates]
            going_on = [place for place, end in enumerate(ends) if not end][: rules.width]
            # Many tokens may complete a stop string.
            if last or len(going_on) == rules.width or len(candidates) < count:
                break
            count *= 2
        if missing:
            looked_at = rules.width if last or not going_on else max(rules.width, going_on[-1] + 1)
            too_few = len(candidates) < looked_at or (not last and len(going_on) < rules.width)
            if too_few or candidates[looked_at - 1].score <= max(missing):
                return None
        self.steps = length
        new = [path for path, end in zip(candidates[: rules.width], ends, strict=False) if end]
        for path in new:
            path.score = self._by_length(path.score, length)
        self.ended = sorted([*self.ended, *new], key=lambda path: -path.score)[: rules.width]
        self.live = [candidates[place] for place in going_on]
        if self._is_over():
            self.live = []
        kept = set(map(id, self.ended))
        return [path for path in new if id(path) in kept]

    def cut(self) -> None:
        """End the search here: beams compete with the ended paths as they are."""
        for path in self.live if self.steps else ():
            # A beam's score stands for its path so far; nothing continues it any more.
            path.score = self._by_length(path.score, self.steps)
            self.ended.append(path)
        self.ended = sorted(self.ended, key=lambda path: -path.score)[: self.rules.width]
        self.live = []

    def _ends(self, path: Path) -> bool:
        return path.token in self.rules.end_tokens or (path.watch is not None and path.watch.ended)

    def _candidates(self, rows: Sequence[Row | None], count: int) -> list[Path]:
        """The ``count`` best continuations of all beams, fewer if there are no more, the best first."""
        found: list[tuple[float, int, int]] = []
        floor = -np.inf
        for beam, (path, row) in enumerate(zip(self.live, rows, strict=True)):
            if row is None:
                continue
            scores = row + path.score
            for token in _best(scores, count, floor):
                found.append((-float(scores[token]), beam, token))
            found.sort()
            del found[count:]
            if len(found) == count:
                floor = -found[-1][0]
        return [self._child(beam, token, np.float32(-score)) for score, beam, token in found]

    def _child(self, beam: int, token: int, score: np.float32) -> Path:
        parent = self.live[beam]
        watch = None if parent.watch is None else parent.watch.after(token)
        return Path(parent, token, beam, score, watch)

    def _by_length(self, score: np.float32, length: int) -> np.float32:
        return np.float32(score / np.float32(float(length) ** self.rules.length_penalty))

    def _is_over(self) -> bool:
        """Whether no beam is left, or none is expected to end better than what has ended."""
        rules = self.rules
        if not self.live or len(self.ended) < rules.width:
            return not self.live
        if rules.early_stopping is True:
            return True
        longest = rules.early_stopping == "never" and rules.length_penalty > 0
        best = self._by_length(self.live[0].score, rules.max_tokens if longest else self.steps)
        return not best > self.ended[-1].score


def _best(scores: Row, count: int, floor: float) -> list[int]:
    """The ``count`` best tokens that are not below ``floor`` nor impossible, in any order; of equals the lower ids."""
    if floor == -np.inf and count < len(scores):
        floor = float(np.partition(scores, len(scores) - count)[len(scores) - count])
    near = np.flatnonzero((scores >= floor) & (scores > -np.inf))
    if len(near) > count:
        near = near[np.argsort(-scores[near], kind="stable")[:count]]
    found: list[int] = near.tolist()
    return found
