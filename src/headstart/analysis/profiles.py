"""How a drafter's guesses fare on prompts and what they cost: the base for forecasts of shorter and smaller drafts."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from headstart.analysis.theory import FloatArray
from headstart.analysis.trees import reach_of
from headstart.analysis.workbench import Contender, Workbench
from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals, stretch_part
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import first_rates
from headstart.models.stretch import RoundRecord, SpanRecord, StretchLimits, StretchPart
from headstart.sampling.params import SamplingParams

_SHORT_EVERY = 4
_BATCH_ROUNDS = 16
"""Rounds of a batch that are timed."""
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


@dataclass(frozen=True)
class Profile:
    """How a drafter's guesses fared on the user's prompts."""

    name: str
    depths: list[list[int]]
    """[round][node] depth of the node, in the order in which smaller trees keep nodes; parents come first."""
    accepted: list[list[int]]
    """[round] indices of the accepted nodes."""
    seconds: dict[int, RoundSeconds]
    """By the number of sequences that decode together."""

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """[round] levels of the whole tree."""
        return np.array([max(depths, default=0) for depths in self.depths], dtype=np.int64)

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
        return RoundSeconds(base, step, other, alone.other_step)

    def deepest(self, batch: int, length: int) -> float:
        """Mean levels of the deepest of so many trees cut to ``length`` levels, if rounds are alike."""
        if not len(self.levels):
            return 0.0
        share = np.arange(len(self.levels) + 1) / len(self.levels)
        return float(np.diff(share**batch) @ np.sort(np.minimum(self.levels, length)))

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
        self._asked = 0
        self.timed: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """By the number of sequences: levels and seconds of every proposal."""
        self.others: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """Likewise nodes of every round, and those of its seconds that are neither draft nor target pass."""
        self._seen: list[tuple[DraftTree, tuple[int, ...]]] = []
        """Structure and accepted nodes of every full tree of a sequence that decoded alone."""

    @property
    def needs(self) -> TargetSignals:
        return self._drafter.needs

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._is_short:
            budgets = [replace(budget, depth=min(budget.depth, 1)) for budget in budgets]
        start = time.perf_counter()
        trees = self._drafter.propose(sequences, budgets)
        self._proposed = time.perf_counter()
        self._between, self._asked = start - self._observed, len(sequences)
        levels = max((int(tree.depths.max(initial=0)) for tree in trees), default=0)
        self.timed[len(sequences)].append((levels, self._proposed - start))
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._drafter.observe(outcomes)
        after_round, self._observed = bool(self._observed), time.perf_counter()
        decoded = [outcome for outcome in outcomes if outcome.committed]
        if not decoded or len(decoded) < self._asked:
            return
        if len(decoded) == 1 and not self._is_short:
            # Without the draft's probabilities, which would fill the memory.
            (outcome,) = decoded
            draft = DraftTree(outcome.draft.tokens, outcome.draft.parents, grades=outcome.draft.grades)
            self._seen.append((draft, outcome.accepted))
        self._rounds += 1
        if after_round and len(decoded) == len(outcomes) == self._asked:
            rest = self._observed - self._proposed - decoded[0].pass_seconds + self._between
            self.others[len(decoded)].append((sum(len(outcome.draft) for outcome in decoded), rest))

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchPart | None:
        """See ``Drafter``."""
        if self._is_short:
            return None  # asked by itself, for a single level
        part = stretch_part(self._drafter, sequences, limits)
        return part and replace(part, learn=lambda rounds: self._learn(part, rounds))

    def _learn(self, part: StretchPart, rounds: Sequence[RoundRecord]) -> None:
        """Rounds that were run at once are over."""
        part.learn(rounds)
        self._rounds += 1
        before, self._observed = self._observed, time.perf_counter()
        rest = self._observed - before - sum(done.pass_seconds + sum(done.draft_seconds) for done in rounds)
        for done in rounds:
            drafts = [_tree_of(span, part) for span in done.spans]
            levels = max(int(draft.depths.max(initial=0)) for draft in drafts)
            self.timed[len(drafts)].append((levels, sum(done.draft_seconds)))
            if before:
                self.others[len(drafts)].append((done.nodes, rest / len(rounds)))
            if len(drafts) == 1:
                self._seen.append((drafts[0], tuple(done.spans[0].path)))

    @property
    def _is_short(self) -> bool:
        """Whether the next round, or stretch of rounds, is one in which a single level is asked for."""
        return self._rounds % _SHORT_EVERY == _SHORT_EVERY - 1

    def pause(self) -> None:
        """Another sequence begins: the time since the last round belongs to no round."""
        self._observed = 0.0

    def profile(self, name: str, batches: Sequence[int] = (1,)) -> Profile:
        """What has been seen so far, with the costs of these batches.

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
        seconds = {
            batch: RoundSeconds(*line(self.timed[batch]), *line(self.others[batch]))
            for batch in batches
            if batch in self.others
        }
        return Profile(name, depths, accepted, seconds)

    def _rates(self) -> list[float]:
        """[grade] how sure a guess is, according to its drafter's ``grade_rates`` or else as counted here."""
        rates = first_rates(self._drafter, math.inf)
        for tree, path in [] if hasattr(self._drafter, "grade_rates") else self._seen:
            for node, (parent, grade) in enumerate(zip(tree.parents.tolist(), grades_of(tree), strict=True)):
                if parent == ROOT or parent in path:
                    rates.count(grade, node in path)
        return rates.rates


def profile(
    bench: Workbench,
    contender: Contender,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batches: Sequence[int] = (),
) -> Profile:
    """Decode the prompts one by one with a drafter and record how its guesses fared; then some rounds of each of
    ``batches``, for what these cost.

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
    # An end of text is no matter of cost, and would leave the larger batches seldom full.
    endless = replace(params, max_tokens=None, ignore_eos=True, stop_token_ids=())
    for batch in batches:
        if batch > 1:
            sequences = [bench.sequence(prompts[place % len(prompts)], endless) for place in range(batch)]
            with closing(bench.full_rounds(engine, sequences, batch)) as rounds:
                deque(islice(rounds, _BATCH_ROUNDS), maxlen=0)
            watcher.pause()
    return watcher.profile(contender.name, sorted({1, *batches}))


def _tree_of(span: SpanRecord, part: StretchPart) -> DraftTree:
    """What was verified for one sequence in a round of a stretch."""
    tokens, parents, grades = (np.array(each, np.int32) for each in (span.tokens, span.parents, span.grades))
    return DraftTree(tokens, parents, grades=None if part.plan else grades)


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
