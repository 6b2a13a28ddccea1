"""Decodes prompts with a drafter and records how its guesses fare and what they cost."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from statistics import fmean, median, mode

import numpy as np

from headstart.drafting.abilities import Graded
from headstart.drafting.base import DraftBudget, Drafter, SequenceView
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import first_rates
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.profiles import Profile, RoundSeconds
from headstart_lab.theory.trees import reach_of
from headstart_lab.workbench import Contender, Workbench
from headstart_lab.wrapper import DrafterWrapper, WatchedRound

_SHORT_EVERY = 4
BATCH_ROUNDS = 16
"""Rounds of a batch that are timed."""


class Watching(DrafterWrapper):
    """Wraps a drafter, times its proposals and the work that its trees cause, and keeps how its full trees fared.

    Now and then it asks for a single level, so that the cost of a level is known.
    """

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._watched = 0
        """Rounds, or stretches of rounds."""
        self._resumed = 0.0
        """When the last round was noted down; 0: none of this sequence was."""
        self.timed: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """By the number of sequences: levels and seconds of every proposal."""
        self.others: dict[tuple[int, bool], list[tuple[int, float]]] = defaultdict(list)
        """By the number of sequences and whether the round was one of several at once: nodes of every round, and those
        of its seconds that are neither draft nor target pass."""
        self.passes: dict[tuple[int, bool], list[tuple[int, float]]] = defaultdict(list)
        """Likewise, with the seconds of the target's pass."""
        self._seen: list[tuple[DraftTree, tuple[int, ...]]] = []
        """Structure and accepted nodes of every full tree of a sequence that decoded alone."""

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._is_short:
            budgets = [replace(budget, depth=min(budget.depth, 1)) for budget in budgets]
        return super().propose(sequences, budgets)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        if self._is_short:
            limits = [replace(each, budget=replace(each.budget, depth=min(each.budget.depth, 1))) for each in limits]
        return super().stretch(sequences, limits)

    def watch(self, rounds: Sequence[WatchedRound]) -> None:
        passed = time.perf_counter() - self._resumed
        rest = passed - sum(each.outcomes[0].pass_seconds + each.draft_seconds for each in rounds if each.outcomes)
        for each in rounds:
            decoded = [outcome for outcome in each.outcomes if outcome.committed]
            if not decoded:
                continue
            levels = max(int(outcome.draft.depths.max(initial=0)) for outcome in decoded)
            self.timed[len(decoded)].append((levels, each.draft_seconds))
            if self._resumed and len(decoded) == len(each.outcomes):
                nodes = sum(len(outcome.draft) for outcome in decoded)
                self.passes[len(decoded), each.at_once].append((nodes, decoded[0].pass_seconds))
                self.others[len(decoded), each.at_once].append((nodes, rest / len(rounds)))
            if len(decoded) == 1 and not self._is_short:
                # Without the draft's probabilities, which would fill the memory.
                (outcome,) = decoded
                draft = DraftTree(outcome.draft.tokens, outcome.draft.parents, grades=outcome.draft.grades)
                self._seen.append((draft, outcome.accepted))
        self._watched += any(outcome.committed for each in rounds for outcome in each.outcomes)
        self._resumed = time.perf_counter()

    @property
    def _is_short(self) -> bool:
        """Whether the next round, or stretch of rounds, is one in which a single level is asked for."""
        return self._watched % _SHORT_EVERY == _SHORT_EVERY - 1

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
                usual = mode(nodes for nodes, _ in self.passes[batch, at_once])
                target = median(taken for nodes, taken in self.passes[batch, at_once] if nodes == usual)
                drafts, rest = line(self.timed[batch]), line(others)
                seconds[batch] = RoundSeconds(*drafts, *rest, at_once, 1 + usual / batch, target)
        return Profile(name, parents, accepted, seconds)

    def _rates(self) -> list[float]:
        """[grade] how sure a guess is, according to its drafter's ``grade_rates`` or else as counted here."""
        rates = first_rates(self.drafter, math.inf)
        for tree, path in [] if isinstance(self.drafter, Graded) else self._seen:
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
                deque(islice(rounds, BATCH_ROUNDS), maxlen=0)
            watcher.pause()
    return watcher.profile(contender.name, sorted({1, *batches}))


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
