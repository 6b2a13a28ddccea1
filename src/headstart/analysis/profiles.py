"""How a drafter's guesses fare on prompts and what they cost: the base for forecasts of shorter and smaller drafts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from headstart.analysis.theory import FloatArray
from headstart.analysis.trees import reach_of
from headstart.analysis.workbench import Contender, Workbench
from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import first_rates
from headstart.sampling.params import SamplingParams

_SHORT_EVERY = 4
_NO_NODE = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Profile:
    """How a drafter's guesses fared on the user's prompts."""

    name: str
    depths: list[list[int]]
    """[round][node] depth of the node, in the order in which smaller trees keep nodes; parents come first."""
    accepted: list[list[int]]
    """[round] indices of the accepted nodes."""
    draft_base: float
    """Seconds of a proposal, whatever its depth."""
    draft_step: float
    """Further seconds for each level."""
    other: float
    """Seconds of a round without guesses that are neither draft nor target pass."""
    other_step: float = 0.0
    """Further seconds for each node."""

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """[round] levels of the whole tree."""
        return np.array([max(depths, default=0) for depths in self.depths], dtype=np.int64)

    @property
    def longest(self) -> int:
        """Levels of the deepest tree."""
        return int(self.levels.max(initial=0))

    def cut(self, nodes: int, length: int) -> tuple[FloatArray, float]:
        """What trees would have yielded if cut to ``length`` levels, and then to their best ``nodes`` nodes.

        Returns:
            [round] nodes that are left, and the mean tokens of a round: 1 + the accepted nodes among them.
        """
        depths, accepted = self._tables
        kept = depths <= length
        kept &= kept.cumsum(axis=1) <= nodes
        return kept.sum(axis=1, dtype=np.float64), 1.0 + float((kept & accepted).sum(axis=1).mean())

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """[round, node] the nodes' depths, and whether they were accepted."""
        shape = len(self.depths), max(map(len, self.depths), default=0)
        depths, accepted = np.full(shape, _NO_NODE, dtype=np.int32), np.zeros(shape, dtype=np.bool_)
        for place, (levels, path) in enumerate(zip(self.depths, self.accepted, strict=True)):
            depths[place, : len(levels)] = levels
            accepted[place, path] = True
        return depths, accepted


class Watching:
    """Wraps a drafter, times its proposals and the work that its trees cause, and keeps how its full trees fared.

    Now and then it asks for a single level, so that the cost of a level is known.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.begin, self.end = drafter.begin, drafter.end
        self._rounds = 0
        self._proposed = self._observed = 0.0
        self._between = 0.0
        self.timed: list[tuple[int, float]] = []
        """Levels and seconds of every proposal."""
        self.others: list[tuple[int, float]] = []
        """Nodes of every round, and those of its seconds that are neither draft nor target pass."""
        self._seen: list[tuple[DraftTree, tuple[int, ...]]] = []
        """Structure and accepted nodes of every full tree."""

    @property
    def needs(self) -> TargetSignals:
        return self._drafter.needs

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        short = self._rounds % _SHORT_EVERY == _SHORT_EVERY - 1
        if short:
            budgets = [replace(budget, depth=min(budget.depth, 1)) for budget in budgets]
        start = time.perf_counter()
        trees = self._drafter.propose(sequences, budgets)
        self._proposed = time.perf_counter()
        self._between = start - self._observed
        self.timed.append((max((int(tree.depths.max(initial=0)) for tree in trees), default=0), self._proposed - start))
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._drafter.observe(outcomes)
        after_round, self._observed = bool(self._observed), time.perf_counter()
        for outcome in outcomes:
            if outcome.committed:
                if self._rounds % _SHORT_EVERY != _SHORT_EVERY - 1:
                    # Without the draft's probabilities, which would fill the memory.
                    draft = DraftTree(outcome.draft.tokens, outcome.draft.parents, grades=outcome.draft.grades)
                    self._seen.append((draft, outcome.accepted))
                self._rounds += 1
                if after_round:
                    rest = self._observed - self._proposed - outcome.pass_seconds + self._between
                    self.others.append((len(outcome.draft), rest))

    def pause(self) -> None:
        """Another sequence begins: the time since the last round belongs to no round."""
        self._observed = 0.0

    def profile(self, name: str) -> Profile:
        """What has been seen so far.

        A drafter that lists its nodes level by level is taken to keep the surest of them in a smaller tree; any other
        one is taken to list them in the order in which it would keep them.
        """
        by_level = all((np.diff(tree.depths) >= 0).all() for tree, _ in self._seen)
        rates = self._rates() if by_level else []
        depths, accepted = [], []
        for tree, path in self._seen:
            order = np.arange(len(tree))
            if by_level:
                order = np.argsort(-reach_of(tree.parents, [rates[grade] for grade in grades_of(tree)]), kind="stable")
            depths.append(tree.depths[order].tolist())
            accepted.append(np.flatnonzero(np.isin(order, path)).tolist())
        return Profile(name, depths, accepted, *line(self.timed), *line(self.others))

    def _rates(self) -> list[float]:
        """[grade] how sure a guess is, according to its drafter's ``grade_rates`` or else as counted here."""
        rates = first_rates(self._drafter, math.inf)
        for tree, path in [] if hasattr(self._drafter, "grade_rates") else self._seen:
            for node, (parent, grade) in enumerate(zip(tree.parents.tolist(), grades_of(tree), strict=True)):
                if parent == ROOT or parent in path:
                    rates.count(grade, node in path)
        return rates.rates


def profile(
    bench: Workbench, contender: Contender, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> Profile:
    """Decode the prompts with a drafter and record how its guesses fared.

    Raises:
        ConfigError, CheckpointError: the drafter cannot be built.
        RequestError: a prompt cannot be served.
    """
    watching: list[Watching] = []

    def watch(drafter: Drafter) -> Drafter:
        watching.append(Watching(drafter))
        return watching[-1]

    engine = bench.open(contender, watch)
    (watcher,) = watching
    for tokens in prompts:
        bench.decode(engine, bench.sequence(tokens, params))
        watcher.pause()
    return watcher.profile(contender.name)


def line(timed: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit seconds = base + step * size through the medians of the small and of the large sizes; base and step."""
    if not timed:
        return 0.0, 0.0
    middle = fmean(levels for levels, _ in timed)
    shallow = [pair for pair in timed if pair[0] <= middle]
    deep = [pair for pair in timed if pair[0] > middle]
    typical = median(seconds for _, seconds in shallow)
    if not deep:
        return typical, 0.0
    low, high = fmean(levels for levels, _ in shallow), fmean(levels for levels, _ in deep)
    step = max(0.0, (median(seconds for _, seconds in deep) - typical) / (high - low))
    return max(0.0, typical - step * low), step
