"""Decodes prompts with a drafter and records how its guesses fare and what they cost."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from statistics import fmean, median

import numpy as np

from headstart.analysis.profiles import Profile, RoundSeconds
from headstart.analysis.trees import reach_of
from headstart.analysis.workbench import Contender, Workbench
from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals, stretch_drafting
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import first_rates
from headstart.sampling.params import SamplingParams
from headstart.stretch import RoundRecord, SpanRecord, StretchDrafting, StretchLimits

_SHORT_EVERY = 4
_BATCH_ROUNDS = 16
"""Rounds of a batch that are timed."""


class Watching:
    """Wraps a drafter, times its proposals and the work that its trees cause, and keeps how its full trees fared.

    Now and then it asks for a single level, so that the cost of a level is known.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.begin, self.end = drafter.begin, drafter.end
        self._rounds = 0
        self._proposed = 0.0
        self._resumed = 0.0
        """When the last round was noted down; 0: none of this sequence was."""
        self._between = 0.0
        self._asked = 0
        self.timed: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """By the number of sequences: levels and seconds of every proposal."""
        self.others: dict[tuple[int, bool], list[tuple[int, float]]] = defaultdict(list)
        """By the number of sequences and whether the round was one of several at once: nodes of every round, and those
        of its seconds that are neither draft nor target pass."""
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
        self._between, self._asked = start - self._resumed, len(sequences)
        levels = max((int(tree.depths.max(initial=0)) for tree in trees), default=0)
        self.timed[len(sequences)].append((levels, self._proposed - start))
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._drafter.observe(outcomes)
        observed = time.perf_counter()
        decoded = [outcome for outcome in outcomes if outcome.committed]
        if decoded and len(decoded) >= self._asked:
            if self._resumed and len(decoded) == len(outcomes) == self._asked:
                rest = observed - self._proposed - decoded[0].pass_seconds + self._between
                self.others[len(decoded), False].append((sum(len(outcome.draft) for outcome in decoded), rest))
            if len(decoded) == 1 and not self._is_short:
                # Without the draft's probabilities, which would fill the memory.
                (outcome,) = decoded
                draft = DraftTree(outcome.draft.tokens, outcome.draft.parents, grades=outcome.draft.grades)
                self._seen.append((draft, outcome.accepted))
            self._rounds += 1
        self._resumed = time.perf_counter()

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``Drafter``."""
        if self._is_short:
            return None  # asked by itself, for a single level
        drafting = stretch_drafting(self._drafter, sequences, limits)
        return drafting and replace(drafting, learn=lambda rounds: self._learn(drafting, rounds))

    def _learn(self, drafting: StretchDrafting, rounds: Sequence[RoundRecord]) -> None:
        """Rounds that were run at once are over."""
        drafting.learn(rounds)
        self._rounds += 1
        passed = time.perf_counter() - self._resumed
        rest = passed - sum(done.pass_seconds + sum(done.draft_seconds) for done in rounds)
        for done in rounds:
            drafts = [_tree_of(span, drafting) for span in done.spans]
            levels = max(int(draft.depths.max(initial=0)) for draft in drafts)
            self.timed[len(drafts)].append((levels, sum(done.draft_seconds)))
            if self._resumed:
                self.others[len(drafts), True].append((done.nodes, rest / len(rounds)))
            if len(drafts) == 1:
                self._seen.append((drafts[0], tuple(done.spans[0].path)))
        self._resumed = time.perf_counter()

    @property
    def _is_short(self) -> bool:
        """Whether the next round, or stretch of rounds, is one in which a single level is asked for."""
        return self._rounds % _SHORT_EVERY == _SHORT_EVERY - 1

    def pause(self) -> None:
        """Another sequence begins: the time since the last round belongs to no round."""
        self._resumed = 0.0

    def profile(self, name: str, batches: Sequence[int] = (1,)) -> Profile:
        """What has been seen so far, with the costs of these batches.

        A drafter that lists its nodes level by level is taken to keep the surest of them in a smaller tree; any other
        one is taken to list them in the order in which it would keep them.
        """
        by_level = all((np.diff(tree.depths) >= 0).all() for tree, _ in self._seen)
        rates = self._rates() if by_level else []
        parents, accepted = [], []
        for tree, path in self._seen:
            order = np.arange(len(tree))
            if by_level:
                order = np.argsort(-reach_of(tree.parents, [rates[grade] for grade in grades_of(tree)]), kind="stable")
            place = np.append(np.argsort(order), ROOT)  # of the root, which is -1, too
            parents.append(place[tree.parents[order]].tolist())
            accepted.append(np.flatnonzero(np.isin(order, path)).tolist())
        seconds = {}
        for batch in batches:
            at_once = len(self.others[batch, True]) > len(self.others[batch, False])
            others = self.others[batch, at_once]
            if others:
                seconds[batch] = RoundSeconds(*line(self.timed[batch]), *line(others), at_once)
        return Profile(name, parents, accepted, seconds)

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


def _tree_of(span: SpanRecord, drafting: StretchDrafting) -> DraftTree:
    """What was verified for one sequence in a round of a stretch."""
    tokens, parents, grades = (np.array(each, np.int32) for each in (span.tokens, span.parents, span.grades))
    return DraftTree(tokens, parents, grades=None if drafting.cut_rule else grades)


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
