"""Decodes prompts with a drafter and records how its guesses fare and what they cost."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from statistics import fmean, median, mode

import numpy as np

from headstart.drafting.abilities import Graded
from headstart.drafting.base import DraftBudget, Drafter, SequenceView
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import first_rates
from headstart.engine.engine import Engine
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.profiles import Profile, RoundSeconds
from headstart_lab.theory.trees import reach_of
from headstart_lab.workbench import Contender, Workbench
from headstart_lab.wrapper import DrafterWrapper, WatchedRound

_ALL = 1 << 16
_LEVELS = (_ALL, _ALL, _ALL, 1)
"""Asked for in turn."""
BATCH_ROUNDS = 16
"""Rounds of a batch that are timed."""


class Watching(DrafterWrapper):
    """Wraps a drafter, times its proposals and the work that its trees cause, and keeps how its full trees fared.

    It asks for at most so many ``levels`` in turn; now and then for one, so that the cost of a level is known.
    """

    def __init__(self, drafter: Drafter, levels: Sequence[int] = _LEVELS) -> None:
        super().__init__(drafter)
        self._levels = levels
        self.watched = 0
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
        budgets = [replace(budget, depth=min(budget.depth, self._most)) for budget in budgets]
        return super().propose(sequences, budgets)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        budgets = [replace(each.budget, depth=min(each.budget.depth, self._most)) for each in limits]
        limits = [replace(each, budget=budget) for each, budget in zip(limits, budgets, strict=True)]
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
            if len(decoded) == 1 and self._most > 1:
                # Without the draft's probabilities, which would fill the memory.
                (outcome,) = decoded
                draft = DraftTree(outcome.draft.tokens, outcome.draft.parents, grades=outcome.draft.grades)
                self._seen.append((draft, outcome.accepted))
        self.watched += any(outcome.committed for each in rounds for outcome in each.outcomes)
        self._resumed = time.perf_counter()

    @property
    def _most(self) -> int:
        """Levels that the next round, or stretch of rounds, may draft."""
        return self._levels[self.watched % len(self._levels)]

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
                parts = self.timed[batch], self.passes[batch, at_once], others
                chains = [
                    [(nodes / of, taken) for nodes, taken in part]
                    for part, of in zip(parts, (1, batch, batch), strict=True)
                ]
                seconds[batch] = RoundSeconds(
                    *drafts, *rest, at_once, 1 + usual / batch, target, tuple(map(_typical, chains))
                )
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
    """What ``profiles`` tells of one drafter."""
    (found,) = profiles(bench, {contender: _LEVELS}, prompts, params, batches)
    return found


def profiles(
    bench: Workbench,
    contenders: Mapping[Contender, Sequence[int]],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batches: Sequence[int] = (),
    turns: int = 0,
) -> list[Profile]:
    """Decode the prompts one by one with each drafter in turn and record how its guesses fared; then some rounds of
    each of ``batches``, for what these cost.

    Args:
        contenders: with the levels that each is asked for in turn.
        turns: how often each number of levels is asked for of a single sequence, at least: the prompts are decoded
            again for that.

    Raises:
        ConfigError, CheckpointError: a drafter cannot be built.
        RequestError: a prompt cannot be served.
    """
    engines: list[Engine] = []
    watchers: list[Watching] = []
    for contender, levels in contenders.items():

        def watch(drafter: Drafter, levels: Sequence[int] = levels) -> Drafter:
            watchers.append(Watching(drafter, levels))
            return watchers[-1]

        engines.append(bench.open(contender, watch))
    wanted = turns * max(map(len, contenders.values()))
    for _ in range(max(1, wanted)):
        for tokens in prompts:
            for engine, watcher in zip(engines, watchers, strict=True):
                bench.decode(engine, bench.sequence(tokens, params))
                watcher.pause()
        if watchers[-1].watched >= wanted:
            break
    # An end of text is no matter of cost, and would leave the larger batches seldom full.
    endless = replace(params, max_tokens=None, ignore_eos=True, stop_token_ids=())
    for batch in batches:
        for engine, watcher in zip(engines, watchers, strict=True) if batch > 1 else ():
            sequences = [bench.sequence(prompts[place % len(prompts)], endless) for place in range(batch)]
            with closing(bench.full_rounds(engine, sequences, batch)) as rounds:
                deque(islice(rounds, BATCH_ROUNDS), maxlen=0)
            watcher.pause()
    sizes = sorted({1, *batches})
    return [each.profile(contender.name, sizes) for each, contender in zip(watchers, contenders, strict=True)]


def _typical(timed: Sequence[tuple[float, float]]) -> dict[float, float]:
    """Size -> median seconds, ascending."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, seconds in sorted(timed):
        by_size[size].append(seconds)
    return {size: median(seconds) for size, seconds in by_size.items()}


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
