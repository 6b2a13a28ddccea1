"""What speculation will bring for a model on a machine: measures costs and acceptance, predicts tokens per second.

Theorem 3.8 (Leviathan et al. 2023) in its tree form: a round yields 1 + the accepted guesses and costs draft + target
pass + the rest; all of these are measured instead of assumed (docs/exactness.md 10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from headstart.engine.engine import Engine
from headstart.engine.sequence import Sequence as Decoded
from headstart.errors import CheckpointError, ConfigError
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.draft_limits import DraftLimits, limits_of
from headstart_lab.plan.pass_times import ROWS, PassTimer, PassTimes, measure_passes
from headstart_lab.plan.profiles import Profile
from headstart_lab.plan.watching import BATCH_ROUNDS, profile
from headstart_lab.workbench import PLAIN, Contender, Workbench
from headstart_lab.workload import Workload

TREE_SIZES = (0, 1, 2, 3, 4, 5, 7, 10, 15, 23, 31)
"""Tree sizes that are compared; 0 is plain decoding."""
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 23, 31)
"""Draft lengths that are compared, up to the longest that a drafter drafts."""
_CONTEXTS = 2
"""Lengths of context that passes are timed at, at most."""
_PASSES_WORK = 2 * len(ROWS)
"""What passes of all numbers of rows take, in units of a token's time."""
_ROUNDS_BETWEEN = 8
"""Rounds of a check between two timings of passes."""
_BATCHES = 4
"""Texts of a check for each place of a batch, at least."""


@dataclass(frozen=True)
class Forecast:
    """What a drafter is expected to achieve with one draft length, tree size and batch."""

    drafter: str
    batch: int
    length: int
    """Most levels of a draft."""
    nodes: int
    """Most nodes of a draft. 0: plain decoding."""
    tokens: float
    """Tokens that a round yields for each sequence."""
    seconds: float
    """Time of a round."""
    speedup: float
    """Speed-up over plain decoding of the same batch."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole batch, without prefill."""
        return self.batch * self.tokens / self.seconds


def forecast(drafter: Profile, plain: Profile, passes: PassTimes, batch: int, nodes: int, length: int) -> Forecast:
    """The tree form of Theorem 3.8 with measured costs, averaged over the rounds that were watched.

    Every drafted level is paid for, even if a smaller tree keeps none of its nodes.
    """
    without = plain.costs(batch)
    plain_seconds = float(without.passes(passes, batch, np.array(1.0))) + without.draft_base + without.other
    if not nodes:
        return Forecast(PLAIN, batch, 0, 0, 1.0, plain_seconds, 1.0)
    kept, tokens = drafter.cut(nodes, length)
    costs = drafter.costs(batch)
    own = costs.draft_base + costs.draft_step * drafter.deepest(batch, min(length, nodes))
    own += costs.other + costs.other_step * batch * float(kept.mean())
    seconds = float(costs.passes(passes, batch, 1.0 + kept).mean()) + own
    return Forecast(drafter.name, batch, length, nodes, tokens, seconds, tokens * plain_seconds / seconds)


@dataclass(frozen=True)
class Checked:
    """A forecast beside its measurement."""

    expected: Forecast
    """The forecast, updated with passes that were timed during the check."""
    measured: float
    """Tokens per second of the whole batch."""
    tokens: float
    """That a round yielded for each sequence."""
    texts: int
    """Sequences that were decoded."""


@dataclass
class Plan:
    """Everything measured and predicted."""

    passes: list[PassTimes] = field(default_factory=list)
    """By context, shortest first; predictions use the last."""
    profiles: list[Profile] = field(default_factory=list)
    """The drafters' profiles; plain decoding comes first."""
    forecasts: list[Forecast] = field(default_factory=list)
    """One for every drafter, batch, size and length."""
    checked: list[Checked] = field(default_factory=list)
    """By batch, with plain decoding first in each."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Drafters that were left out -> why."""

    def best(self, batch: int, drafter: str | None = None) -> Forecast:
        """The fastest forecast of one drafter or of all; plain decoding (0 nodes) always competes.

        Among equally fast ones, the smallest tree wins, and of its draft lengths the largest, which restricts least.
        """
        rivals = [
            each
            for each in self.forecasts
            if each.batch == batch and (drafter is None or each.drafter in (drafter, PLAIN))
        ]
        return max(rivals, key=lambda each: (each.speedup, -each.nodes, each.length))

    def by_length(self, batch: int, drafter: str) -> list[Forecast]:
        """The fastest forecast of a drafter for each draft length."""
        return self._fastest(batch, drafter, lambda each: each.length)

    def by_nodes(self, batch: int, drafter: str) -> list[Forecast]:
        """The fastest forecast of a drafter for each tree size."""
        return self._fastest(batch, drafter, lambda each: each.nodes)

    def _fastest(self, batch: int, drafter: str, size: Callable[[Forecast], int]) -> list[Forecast]:
        best: dict[int, Forecast] = {}
        for each in self.forecasts:
            if (each.batch, each.drafter) == (batch, drafter):
                best[size(each)] = max(best.get(size(each), each), each, key=lambda one: one.speedup)
        return [best[key] for key in sorted(best)]

    def limits(self, chosen: Forecast) -> DraftLimits:
        """The limits that make a drafter draft as in a forecast."""
        (drafter,) = [each for each in self.profiles if each.name == chosen.drafter]
        kept, _ = drafter.cut(TREE_SIZES[-1], chosen.length)
        return limits_of(
            chosen.drafter,
            chosen.length,
            chosen.nodes,
            cuts_levels=chosen.length < min(drafter.longest, chosen.nodes),
            cuts_nodes=chosen.nodes < kept.max(initial=0),
        )


def make_plan(
    bench: Workbench,
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batches: Sequence[int],
    repeats: int = 7,
    on_step: Callable[[int, int], None] = lambda units, tokens: None,
    plan: Plan | None = None,
) -> Plan:
    """Measure and predict.

    Args:
        contenders: plain decoding first; each must be free to draft as much as is compared (``draft_limits.freely``).
        prompts: token ids.
        on_step: called as it goes on with units of work, of which there are ``planned_work``, and tokens decoded.
        plan: filled step by step, so that its results are kept if the call is interrupted; None: a new one.

    Raises:
        ConfigError, CheckpointError: a drafter that is not optional cannot be built, or the context is too short.
    """
    plan = Plan() if plan is None else plan
    room = bench.limits.max_context - ROWS[-1]
    if room < 1:
        context = bench.limits.max_context
        raise ConfigError(f"a plan times passes of {ROWS[-1]} rows; this model's context of {context} is too short.")
    typical = int(median(len(tokens) for tokens in prompts)) + (params.max_tokens or 0) // 2
    contexts = sorted({min(32, room), min(typical, room)})
    text = _text(bench, prompts)
    work = Workload(on_step)
    with work.part(_CONTEXTS * len(batches) * repeats * _PASSES_WORK):
        plan.passes = [
            measure_passes(bench, context, batches, repeats, params, text, lambda: work.done(0, _PASSES_WORK))
            for context in contexts
        ]
    bench.on_tokens = work.done
    for contender in contenders:
        try:
            with work.part(_profile_work(len(prompts), params, batches)):
                found = profile(bench, contender, prompts, params, batches)
        except (ConfigError, CheckpointError) as error:
            if not contender.optional:
                raise
            plan.skipped[contender.name] = str(error)
            continue
        plan.profiles.append(found)
        plan.forecasts += [
            forecast(found, plan.profiles[0], plan.passes[-1], batch, nodes, length)
            for batch in batches
            for nodes, length in _shapes(found)
            if batch * (nodes + 1) <= max(*batches, ROWS[-1])
        ]
    bench.on_tokens = lambda tokens: None
    return plan


def planned_work(contenders: int, prompts: int, params: SamplingParams, batches: Sequence[int], repeats: int) -> int:
    """Units of work of ``make_plan``, of about the time of a token each."""
    return _CONTEXTS * len(batches) * repeats * _PASSES_WORK + contenders * _profile_work(prompts, params, batches)


def _profile_work(prompts: int, params: SamplingParams, batches: Sequence[int]) -> int:
    """Tokens that are decoded with one drafter."""
    return prompts * (params.max_tokens or 1) + BATCH_ROUNDS * sum(batch for batch in batches if batch > 1)


def _text(bench: Workbench, prompts: Sequence[Sequence[int]]) -> list[int]:
    """What rows of timed passes say. Of a model with experts, what its requests do: so they share as many."""
    return [] if bench.backend.config.experts is None else [token for prompt in prompts for token in prompt]


def _shapes(drafter: Profile) -> list[tuple[int, int]]:
    """Sizes and lengths to compare: a tree has at most as many levels as nodes, or as its drafter drafts."""
    if drafter.name == PLAIN:
        return [(0, 0)]
    shapes = []
    for nodes in TREE_SIZES[1:]:
        most = max(min(nodes, drafter.longest), 1)
        shapes += [(nodes, length) for length in LENGTHS if length < most] + [(nodes, most)]
    return shapes


def check(bench: Workbench, plan: Plan, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    """Decode the prompts as planned and fill ``Plan.checked``.

    Takes turns between plain decoding and, for a single sequence, every drafter at its best length and size; for larger
    batches, only the recommended drafter. Drafters are built anew, with the limits that the plan names.

    Every few rounds passes are timed again over the sequences that decode, and the forecasts are updated, so that what
    else the machine does hits prediction and measurement alike. If interrupted, it keeps the prompts that all drafters
    have decoded.
    """
    for batch in plan.passes[-1].seconds:
        _check_batch(bench, plan, batch, prompts, params)


def _check_batch(
    bench: Workbench, plan: Plan, batch: int, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> None:
    plain, *others = plan.profiles
    recommended = plan.best(batch).drafter
    trials = [(plain, plan.best(batch, PLAIN))]
    for each in others:
        best = plan.best(batch, each.name)
        if best.nodes and (batch == 1 or each.name == recommended):
            trials.append((each, best))
    limits = [plan.limits(best) for _, best in trials]
    engines = [bench.open(Contender.parse(each.drafter)) for each in limits]
    timers = [PassTimer(bench, params, 1 + best.nodes, _text(bench, prompts)) for _, best in trials]
    done: list[list[_Decoding]] = []
    try:
        for number, texts in enumerate(_together(prompts, batch)):
            found: dict[int, _Decoding] = {}
            for turn in range(len(trials)):
                place = (number + turn) % len(trials)
                sequences = [bench.sequence(prompt, params, limits[place].speculation) for prompt in texts]
                found[place] = _Decoding.of(bench, engines[place], sequences, batch, timers[place])
            done.append([found[place] for place in range(len(trials))])
    finally:
        # Of texts that end before they all decode nothing is known.
        done = [found for found in done if all(each.tokens for each in found)]
        if done:
            for place, (drafter, best) in enumerate(trials):
                # Disturbances are in what is measured; so not the medians, which leave them out.
                passes = timers[place].times(fmean) or plan.passes[-1]
                expected = forecast(drafter, plain, passes, batch, best.nodes, best.length)
                mine = [found[place] for found in done]
                tokens, rounds = sum(each.tokens for each in mine), sum(each.rounds for each in mine)
                speed, decoded = tokens / sum(each.seconds for each in mine), sum(each.texts for each in mine)
                plan.checked.append(Checked(expected, speed, tokens / rounds / batch, decoded))


def _together(prompts: Sequence[Sequence[int]], batch: int) -> list[list[Sequence[int]]]:
    """Prompts that a drafter decodes before it is another one's turn: each alone, or all of them, often enough to keep
    a batch full most of the time."""
    if batch == 1:
        return [[prompt] for prompt in prompts]
    return [list(prompts) * -(-_BATCHES * batch // len(prompts))]


@dataclass(frozen=True)
class _Decoding:
    """What sequences yielded while as many as belong together were decoding."""

    tokens: int
    seconds: float
    rounds: int
    texts: int

    @classmethod
    def of(
        cls, bench: Workbench, engine: Engine, sequences: Sequence[Decoded], batch: int, timer: PassTimer
    ) -> _Decoding:
        tokens = rounds = 0
        seconds, untimed = 0.0, _ROUNDS_BETWEEN
        with closing(bench.full_rounds(engine, sequences, batch)) as steps:
            for more, said, taken in steps:
                rounds, tokens, seconds, untimed = rounds + more, tokens + said, seconds + taken, untimed + more
                if untimed >= _ROUNDS_BETWEEN and len(engine.running) == batch:
                    timer.time([sequence.id for sequence in engine.running])
                    untimed = 0
        return cls(tokens, seconds, rounds, len(sequences))
