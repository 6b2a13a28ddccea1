"""What a benchmark's runs amount to: speed-ups by group, acceptance, where a round's time goes, theory beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from headstart_lab.bench.reliability import Reliability
from headstart_lab.bench.run import BenchRuns, Run
from headstart_lab.theory import formulas as theory
from headstart_lab.workbench import PLAIN


@dataclass(frozen=True)
class Spread:
    """A figure taken several times."""

    middle: float
    """The median."""
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median, smallest and largest of values, at least one."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Speed:
    """How fast a contender was, each figure over the repeats."""

    decoding: Spread
    """Tokens per second, prefill left out."""
    with_prefill: Spread
    """Tokens per second from admission to the last token."""
    speedup: Spread
    """Decoding speed over plain decoding's in the same repeat."""


@dataclass(frozen=True)
class Breakdown:
    """Where the time of an average round goes, in seconds."""

    target: float
    draft: float
    draft_prefill: float
    """The drafter's reading of prompts, spread over the rounds."""
    other: float
    """Everything else: verification, commit, bookkeeping, what the drafter learns."""

    @property
    def round(self) -> float:
        return self.target + self.draft + self.draft_prefill + self.other

    def shares(self) -> tuple[float, float, float, float]:
        """The parts, in order, as parts of the round."""
        whole = self.round
        return self.target / whole, self.draft / whole, self.draft_prefill / whole, self.other / whole


@dataclass(frozen=True)
class Forecast:
    """The paper's theory beside the measurement (the form of its table 4), over all prompts."""

    gamma: float
    """Mean draft length; of a tree, its levels."""
    alpha: float
    """Accepted guesses over positions at which one could have been accepted."""
    c: float
    """Time of one draft step over that of plain decoding's pass."""
    expected: float
    """Theorem 3.8, averaged over the draft lengths that occurred."""
    expected_at_cost: float
    """Tokens a round over the cost of its draft and its pass, both as measured (the tree form)."""
    measured: float
    """Speed-up in decoding; the median over the repeats."""


@dataclass(frozen=True)
class Summary:
    """The figures of one contender."""

    name: str
    groups: dict[str, Speed]
    mean: Speed
    """Mean over the groups, in each repeat."""
    turn_quartiles: tuple[float, float, float]
    """Quartiles of the speed-up over the turns of all prompts (of each turn the median over the repeats)."""
    mean_accepted_length: float
    acceptance_rate: float | None
    """Accepted over drafted nodes; None: nothing was drafted."""
    acceptance_by_position: list[float]
    """[i]: how often the guess at depth i + 1 was accepted, given that those above it were."""
    breakdown: Breakdown
    pass_ratio: float
    """Time of its pass over plain decoding's."""
    compared: int
    """Turns whose tokens had to be those of plain decoding."""
    differing: int
    """Turns where they were not."""
    largest_gap: float | None
    """The largest top-2 gap at a first difference, as a part of the logits' range."""
    forecast: Forecast | None
    """None for plain decoding, and where nothing was drafted."""
    reliability: Reliability | None = None
    """None: the drafter does not say how likely its guesses are."""


def summarise(results: BenchRuns) -> list[Summary]:
    """One summary for each contender, plain decoding first."""
    by_name: dict[str, list[Run]] = {}
    for run in results.runs:
        by_name.setdefault(run.contender, []).append(run)
    plain = by_name.get(PLAIN, [])
    return [_summary(name, runs, plain, results) for name, runs in by_name.items()]


def _summary(name: str, runs: Sequence[Run], plain: Sequence[Run], results: BenchRuns) -> Summary:
    groups, mean = speeds(runs, plain)
    drafted, accepted = _sum_lists(runs, "drafted_per_position"), _sum_lists(runs, "accepted_per_position")
    nodes = sum(run.stats.drafted for run in runs)
    reliability = sum((run.reliability for run in runs), Reliability())
    breakdown, plain_breakdown = _breakdown(runs), _breakdown(plain)
    gaps = [difference.gap for (contender, _, _), difference in results.differences.items() if contender == name]
    return Summary(
        name=name,
        groups=groups,
        mean=mean,
        turn_quartiles=_turn_quartiles(runs, plain),
        mean_accepted_length=_tokens_per_round(runs),
        acceptance_rate=sum(run.stats.accepted for run in runs) / nodes if nodes else None,
        acceptance_by_position=[a / d for a, d in zip(accepted, drafted, strict=True)],
        breakdown=breakdown,
        pass_ratio=breakdown.target / plain_breakdown.target,
        compared=len({(run.prompt, run.turn) for run in runs if run.must_agree}),
        differing=len(gaps),
        largest_gap=max(gaps, default=None),
        forecast=_forecast(runs, plain, sum(accepted), sum(drafted)),
        reliability=reliability if reliability.guesses else None,
    )


def speeds(runs: Sequence[Run], plain: Sequence[Run]) -> tuple[dict[str, Speed], Speed]:
    """How fast a contender was: in each group, and on average over the groups; ``plain``: plain decoding's runs."""
    groups = list(dict.fromkeys(run.group for run in runs))
    repeats = sorted({run.repeat for run in runs})
    figures = {
        group: [
            _speeds(_only(runs, repeat=repeat, group=group), _only(plain, repeat=repeat, group=group))
            for repeat in repeats
        ]
        for group in groups
    }
    means = [tuple(map(fmean, zip(*by_group, strict=True))) for by_group in zip(*figures.values(), strict=True)]
    return {group: _speed(figures[group]) for group in groups}, _speed(means)


def _forecast(runs: Sequence[Run], plain: Sequence[Run], accepted: int, possible: int) -> Forecast | None:
    depths = [depth for run in runs for depth in run.depths]
    if not possible or not sum(depths):
        return None
    own, reference = _breakdown(runs), _breakdown(plain)
    alpha, gamma = accepted / possible, fmean(depths)
    c = own.draft / gamma / reference.target
    expected = fmean(theory.expected_tokens(alpha, depth) for depth in depths) / (1.0 + gamma * c)
    at_cost = _tokens_per_round(runs) * reference.target / (own.target + own.draft)
    repeats = sorted({run.repeat for run in runs})
    measured = [_speeds(_only(runs, repeat=repeat), _only(plain, repeat=repeat))[2] for repeat in repeats]
    return Forecast(gamma, alpha, c, expected, at_cost, median(measured))


def _speeds(runs: Sequence[Run], plain: Sequence[Run]) -> tuple[float, float, float]:
    """Tokens per second without and with prefill, and the speed-up."""
    decoding = _rate(runs, _decoding)
    return decoding, _rate(runs, lambda run: run.stats.seconds), decoding / _rate(plain, _decoding)


def _speed(figures: Sequence[Sequence[float]]) -> Speed:
    return Speed(*(Spread.of([figure[i] for figure in figures]) for i in range(3)))


def _turn_quartiles(runs: Sequence[Run], plain: Sequence[Run]) -> tuple[float, float, float]:
    def typical(these: Sequence[Run], key: tuple[str, int]) -> float:
        return median(_rate([run], _decoding) for run in these if (run.prompt, run.turn) == key)

    turns = dict.fromkeys((run.prompt, run.turn) for run in runs)
    ratios = [typical(runs, key) / typical(plain, key) for key in turns]
    low, middle, high = quantiles(ratios * 2 if len(ratios) == 1 else ratios, n=4, method="inclusive")
    return low, middle, high


def _decoding(run: Run) -> float:
    return run.decode_seconds


def _rate(runs: Sequence[Run], seconds: Callable[[Run], float]) -> float:
    return sum(run.stats.tokens for run in runs) / sum(seconds(run) for run in runs)


def _breakdown(runs: Sequence[Run]) -> Breakdown:
    rounds = sum(run.stats.rounds for run in runs)
    target, draft, draft_prefill = (
        sum(getattr(run.stats, f"{part}_seconds") for run in runs) / rounds
        for part in ("target", "draft", "draft_prefill")
    )
    decoding = sum(run.decode_seconds for run in runs) / rounds
    return Breakdown(target, draft, draft_prefill, decoding - target - draft - draft_prefill)


def _tokens_per_round(runs: Sequence[Run]) -> float:
    return sum(run.stats.tokens for run in runs) / sum(run.stats.rounds for run in runs)


def _sum_lists(runs: Sequence[Run], name: str) -> list[int]:
    lists: list[list[int]] = [getattr(run.stats, name) for run in runs]
    return [sum(each[i] for each in lists if i < len(each)) for i in range(max(map(len, lists), default=0))]


def _only(runs: Sequence[Run], *, repeat: int, group: str | None = None) -> list[Run]:
    return [run for run in runs if run.repeat == repeat and group in (None, run.group)]
