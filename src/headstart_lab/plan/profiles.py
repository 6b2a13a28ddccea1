"""How a drafter's guesses fared on prompts and what they cost: the base for forecasts of shorter and smaller drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headstart.passes.draft_tree import ROOT
from headstart_lab.plan.pass_times import PassTimes
from headstart_lab.theory.formulas import FloatArray

_NO_NODE = np.iinfo(np.int32).max


@dataclass(frozen=True)
class RoundSeconds:
    """Seconds of a round of some sequences that are not its target pass."""

    draft_base: float
    """Of a proposal for all of them, whatever its depth."""
    draft_step: float
    """Further ones for each level of the deepest tree."""
    other: float
    """Of a round without guesses that are neither draft nor target pass."""
    other_step: float = 0.0
    """Further ones for each node of each tree."""
    at_once: bool = False
    """Whether its rounds were run at once, mostly: what Python adds to a single pass is not in them."""
    rows: float = 1.0
    """Of each sequence in most of its passes."""
    target: float = 0.0
    """Seconds of such a pass; 0: none was seen."""
    typical: tuple[Mapping[float, float], ...] = ()
    """Seconds of the draft by levels, and of the target's pass and the rest by nodes of each sequence, ascending."""

    def of_chains(self, guesses: int) -> tuple[float, ...]:
        """Seconds of the draft, the target's pass and the rest of rounds with so many guesses of each sequence."""
        return tuple(float(np.interp(guesses, list(part), list(part.values()))) for part in self.typical)

    def passes(self, times: PassTimes, batch: int, rows: FloatArray) -> FloatArray:
        """[...] seconds of passes of so many rows of each sequence among these rounds. They take longer than those that
        were timed one after the other: between them, drafts have the caches."""
        seconds = times.of(batch, rows, self.at_once)
        if not self.target:
            return seconds
        return seconds * (self.target / times.of(batch, np.array(self.rows), self.at_once))


@dataclass(frozen=True)
class Profile:
    """How a drafter's guesses fared on the user's prompts."""

    name: str
    parents: list[list[int]]
    """[round][node] an earlier node, or -1 for the root; in the order in which smaller trees keep nodes."""
    accepted: list[list[int]]
    """[round] the accepted nodes, from the first level down."""
    seconds: dict[int, RoundSeconds]
    """By the number of sequences that decode together."""

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """[round] levels of the whole tree."""
        return self._views.deepest[self._views.first]

    @property
    def longest(self) -> int:
        """Levels of the deepest tree."""
        return int(self.levels.max(initial=0))

    def costs(self, batch: int) -> RoundSeconds:
        """Of so many sequences; if they never decoded together, each is taken to cost what a single one does."""
        if batch in self.seconds:
            return self.seconds[batch]
        alone = self.seconds.get(1, RoundSeconds(0.0, 0.0, 0.0))
        base, step, other = (batch * each for each in (alone.draft_base, alone.draft_step, alone.other))
        typical = tuple({size: batch * seconds for size, seconds in part.items()} for part in alone.typical)
        return RoundSeconds(base, step, other, alone.other_step, alone.at_once, typical=typical)

    def deepest(self, batch: int, length: int) -> float:
        """Mean levels of the deepest of so many trees cut to ``length`` levels, if rounds are alike."""
        if not len(self.levels):
            return 0.0
        share = np.arange(len(self.levels) + 1) / len(self.levels)
        return float(np.diff(share**batch) @ np.sort(np.minimum(self.levels, length)))

    def cut(self, nodes: int, length: int) -> tuple[FloatArray, float]:
        """What trees would have yielded if cut to ``length`` levels, and then to their best ``nodes`` nodes.

        A smaller tree needs more rounds for a passage that the whole one guessed at once. So each round is played
        again: after what the smaller tree gets accepted the next one grows from there, out of the guesses below, as
        long as those have as many levels as it may use. For guesses that hold independently this is what Theorem 3.8
        says; where they come in runs, as copied text does, the runs count for as many rounds as they would take.

        Returns:
            [round] nodes that are left in the rounds as they would be, and their mean tokens: 1 + the accepted nodes.
        """
        views = self._views
        kept = views.depths <= length
        kept &= kept.cumsum(axis=1) <= nodes
        accepted = (kept & views.accepted).sum(axis=1)
        may_begin = views.deepest >= min(nodes, length)
        begun = np.zeros(len(accepted), dtype=np.bool_)
        at = views.first
        while len(at):
            begun[at] = True
            after = at + accepted[at] + 1
            after = after[after < views.end[at]]
            at = after[may_begin[after]]
        return kept[begun].sum(axis=1, dtype=np.float64), 1.0 + float(accepted[begun].mean())

    @cached_property
    def _views(self) -> _Views:
        return _Views.of(self.parents, self.accepted)


@dataclass(frozen=True)
class _Views:
    """The trees as seen from their roots and from every accepted node: what lies below it, and what of that holds.

    The views of a round follow each other, its root's first.
    """

    depths: NDArray[np.int32]
    """[view, node] levels below where one looks from; ``_NO_NODE`` for what does not lie below."""
    accepted: NDArray[np.bool_]
    """[view, node] whether a node lies below and was accepted."""
    deepest: NDArray[np.int64]
    """[view] levels below."""
    first: NDArray[np.int64]
    """[round] its first view."""
    end: NDArray[np.int64]
    """[view] the first view of the next round."""

    @classmethod
    def of(cls, parents: list[list[int]], accepted: list[list[int]]) -> _Views:
        counts = np.array([1 + len(path) for path in accepted], dtype=np.int64)
        first = np.cumsum(counts) - counts
        shape = int(counts.sum()), max(map(len, parents), default=0)
        depths, holds = np.full(shape, _NO_NODE, dtype=np.int32), np.zeros(shape, dtype=np.bool_)
        for start, tree, path in zip(first.tolist(), parents, accepted, strict=True):
            place = {node: level for level, node in enumerate(path, start=1)}
            levels, shared = [0] * len(tree), [0] * len(tree)  # and how many of the path's nodes lead to a node
            for node, parent in enumerate(tree):
                levels[node] = 1 if parent == ROOT else levels[parent] + 1
                shared[node] = place.get(node, 0 if parent == ROOT else shared[parent])
            offsets = np.arange(1 + len(path), dtype=np.int32)[:, None]
            below = (np.array(shared, np.int32) >= offsets) & (np.array(levels, np.int32) > offsets)
            rows = np.s_[start : start + len(offsets), : len(tree)]
            depths[rows] = np.where(below, np.array(levels, np.int32) - offsets, _NO_NODE)
            holds[rows] = below & np.isin(np.arange(len(tree)), path)
        deepest = np.where(depths == _NO_NODE, 0, depths).max(axis=1, initial=0).astype(np.int64)
        return cls(depths, holds, deepest, first, np.repeat(first + counts, counts))
