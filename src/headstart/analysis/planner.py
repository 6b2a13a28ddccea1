"""What speculation will bring for a model on a machine: costs and acceptance measured, tokens per second predicted.

Theorem 3.8 (Leviathan et al. 2023) in its tree form: a round yields 1 + the accepted guesses and costs draft + target
pass + the rest, all of them as measured instead of assumed (methods-exact C).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

import numpy as np

from headstart.analysis.theory import FloatArray
from headstart.analysis.workbench import PLAIN, Contender, Workbench
from headstart.draft_tree import DraftTree
from headstart.drafting.base import (
    DraftBudget,
    Drafter,
    RoundOutcome,
    SequenceView,
    SpeculationParams,
    TargetSignals,
)
from headstart.runner import Span
from headstart.sampling.params import SamplingParams

TREE_SIZES = (0, 1, 2, 3, 4, 5, 7, 10, 15, 23, 31)
"""Sizes that are compared; 0 is plain decoding."""
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_SHORT_EVERY = 4
_MODEL_ID = -1


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a target pass: the medians of passes measured in turn."""

    context: int
    """Tokens that each sequence had in the cache."""
    seconds: dict[int, dict[int, float]]
    """batch -> rows of each sequence -> seconds."""

    def of(self, batch: int, rows: FloatArray) -> FloatArray:
        """[...] seconds for so many rows of each sequence, straight lines between those measured."""
        curve = self.seconds[batch]
        return np.asarray(np.interp(rows, list(curve), list(curve.values())))


def measure_passes(bench: Workbench, context: int, batches: Sequence[int], repeats: int) -> PassTimes:
    """Time passes of ``ROWS`` rows for each batch, interleaved, so that a disturbance hits all alike."""
    runner, largest = bench.runner, max(batches)
    ids = [_MODEL_ID - place for place in range(largest)]
    sizes = [(batch, rows) for batch in batches for rows in ROWS if batch * rows <= max(largest, ROWS[-1])]
    taken: dict[tuple[int, int], list[float]] = {size: [] for size in sizes}
    try:
        for sequence_id in ids:
            runner.cache.add(sequence_id)
            with runner.cache.reserve({sequence_id: context}):
                runner.forward([Span.chain(sequence_id, [1] * context, "none")])
                runner.cache.commit(sequence_id, range(context))
        for _ in range(repeats):
            for batch, rows in sizes:
                spans = [Span.chain(sequence_id, [1] * rows) for sequence_id in ids[:batch]]
                with runner.cache.reserve({span.sequence_id: rows for span in spans}):
                    start = time.perf_counter()
                    runner.forward(spans)
                    taken[batch, rows].append(time.perf_counter() - start)
    finally:
        for sequence_id in ids:
            if sequence_id in runner.cache:
                runner.cache.remove(sequence_id)
    curves: dict[int, dict[int, float]] = {batch: {} for batch in batches}
    for (batch, rows), seconds in taken.items():
        curves[batch][rows] = median(seconds)
    return PassTimes(context, curves)


@dataclass(frozen=True)
class Profile:
    """How a drafter's guesses fared on the user's prompts."""

    name: str
    levels: list[list[int]]
    """[round][node] levels of the tree up to this node."""
    accepted: list[list[int]]
    """[round] accepted nodes, ascending."""
    draft_base: float
    """Seconds to propose, whatever the depth."""
    draft_step: float
    """Seconds for each level."""
    other: float
    """Seconds of a round that are neither draft nor target pass, where nothing is guessed."""
    other_step: float = 0.0
    """Seconds more for each node."""

    def tokens(self, nodes: int) -> float:
        """Tokens a round from trees cut to their first ``nodes`` nodes: 1 + the sum of their reach."""
        return 1.0 + fmean(sum(node < nodes for node in path) for path in self.accepted)


class _Watching:
    """Times a drafter and what follows from its trees, asks for one level only now and then, and keeps how full trees
    fared."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.begin, self.end = drafter.begin, drafter.end
        self._rounds = 0
        self._proposed = self._observed = 0.0
        self._between = 0.0
        self.timed: list[tuple[int, float]] = []
        """Levels and seconds of every proposal."""
        self.others: list[tuple[int, float]] = []
        """Nodes of every round, and its seconds that are neither draft nor target pass."""
        self.levels: list[list[int]] = []
        self.accepted: list[list[int]] = []

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
                    self.levels.append(np.maximum.accumulate(outcome.draft.depths).tolist())
                    self.accepted.append(list(outcome.accepted))
                self._rounds += 1
                if after_round:
                    rest = self._observed - self._proposed - outcome.pass_seconds + self._between
                    self.others.append((len(outcome.draft), rest))

    def pause(self) -> None:
        """Another sequence begins: the time since the last round belongs to none."""
        self._observed = 0.0


def profile(
    bench: Workbench, contender: Contender, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> Profile:
    """Decode the prompts with a drafter and keep how its guesses fared.

    Raises:
        ConfigError, CheckpointError: the drafter cannot be built.
        RequestError: a prompt cannot be served.
    """
    watching: list[_Watching] = []

    def watch(drafter: Drafter) -> Drafter:
        watching.append(_Watching(drafter))
        return watching[-1]

    engine = bench.open(contender, watch)
    (watcher,) = watching
    for tokens in prompts:
        bench.decode(engine, bench.sequence(tokens, params))
        watcher.pause()
    return Profile(contender.name, watcher.levels, watcher.accepted, *_line(watcher.timed), *_line(watcher.others))


def _line(timed: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds as base + step * size, through the medians of the small and of the large sizes."""
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


@dataclass(frozen=True)
class Forecast:
    """What a drafter is expected to do at one tree size and batch."""

    drafter: str
    batch: int
    nodes: int
    """Nodes of a tree at most; of a chain its length. 0: plain decoding."""
    tokens: float
    """Tokens a round of each sequence."""
    seconds: float
    """Of a round."""
    speedup: float
    """Over plain decoding of the same batch."""

    @property
    def tokens_per_second(self) -> float:
        """Of the whole batch, prefill left out."""
        return self.batch * self.tokens / self.seconds


def forecast(drafter: Profile, plain: Profile, passes: PassTimes, batch: int, nodes: int) -> Forecast:
    """The tree form of Theorem 3.8 with measured costs, averaged over the rounds that were watched.

    Drafting and bookkeeping are taken to cost each sequence of a batch as much as one alone.
    """
    plain_seconds = float(passes.of(batch, np.array(1.0))) + batch * (plain.draft_base + plain.other)
    if not nodes:
        return Forecast(PLAIN, batch, 0, 1.0, plain_seconds, 1.0)
    cut = [levels[:nodes] for levels in drafter.levels]
    rows = np.array([1.0 + len(levels) for levels in cut])
    depths = np.array([levels[-1] if levels else 0 for levels in cut])
    own = drafter.draft_base + drafter.draft_step * depths + drafter.other + drafter.other_step * (rows - 1.0)
    seconds = float(np.mean(passes.of(batch, rows) + batch * own))
    tokens = drafter.tokens(nodes)
    return Forecast(drafter.name, batch, nodes, tokens, seconds, tokens * plain_seconds / seconds)


@dataclass
class Plan:
    """Everything measured and predicted."""

    passes: list[PassTimes]
    """By context, shortest first; predictions use the last."""
    profiles: list[Profile]
    """Plain decoding's first."""
    forecasts: list[Forecast]
    """Of every drafter, batch and size."""
    checked: list[tuple[Forecast, float]] = field(default_factory=list)
    """Forecasts that were tried, plain decoding first, and the tokens per second measured."""

    def best(self, batch: int, drafter: str | None = None) -> Forecast:
        """The fastest, of one drafter or of all; plain decoding (0 nodes) is among them."""
        rivals = [each for each in self.forecasts if each.batch == batch and each.drafter in (drafter, PLAIN)]
        if drafter is None:
            rivals = [each for each in self.forecasts if each.batch == batch]
        return max(rivals, key=lambda each: each.speedup)


def make_plan(
    bench: Workbench,
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batches: Sequence[int],
    repeats: int = 7,
    on_step: Callable[[], None] = lambda: None,
) -> Plan:
    """Measure and predict. ``contenders`` begin with plain decoding; prompts are token ids."""
    room = bench.limits.max_context - ROWS[-1]
    typical = int(median(len(tokens) for tokens in prompts)) + (params.max_tokens or 0) // 2
    contexts = sorted({min(32, room), min(typical, room)})
    passes = [measure_passes(bench, context, batches, repeats) for context in contexts]
    on_step()
    profiles = []
    for contender in contenders:
        profiles.append(profile(bench, contender, prompts, params))
        on_step()
    plain = profiles[0]
    forecasts = [
        forecast(each, plain, passes[-1], batch, nodes)
        for batch in batches
        for each in profiles
        for nodes in ((0,) if each.name == PLAIN else TREE_SIZES[1:])
        if batch * (nodes + 1) <= max(*batches, ROWS[-1])
    ]
    return Plan(passes, profiles, forecasts)


def check(
    bench: Workbench,
    plan: Plan,
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> None:
    """Decode the prompts as planned for one sequence at a time, each drafter at its best size, in turn; see
    ``Plan.checked``.

    Passes are timed again between the prompts, each time at the context of the next one, and the forecasts are made
    anew from them: what else the machine does then hits prediction and measurement alike.
    """
    sizes = [plan.best(1, each.name).nodes for each in contenders]
    engines = [bench.open(each) for each in contenders]
    tokens, seconds = [0] * len(sizes), [0.0] * len(sizes)
    timed = []
    for number, prompt in enumerate(prompts):
        timed.append(measure_passes(bench, len(prompt) + (params.max_tokens or 0) // 2, (1,), 3))
        for turn in range(len(sizes)):
            place = (number + turn) % len(sizes)
            sequence = bench.sequence(prompt, params, SpeculationParams(tree_nodes=sizes[place]))
            bench.decode(engines[place], sequence)
            tokens[place] += sequence.stats.tokens
            seconds[place] += sequence.stats.seconds - sequence.stats.prefill_seconds
    curve = {rows: fmean(times.seconds[1][rows] for times in timed) for rows in timed[0].seconds[1]}
    passes = PassTimes(round(fmean(times.context for times in timed)), {1: curve})
    plain, *_ = plan.profiles
    for drafter, nodes, count, taken in zip(plan.profiles, sizes, tokens, seconds, strict=True):
        plan.checked.append((forecast(drafter, plain, passes, 1, nodes), count / taken))
