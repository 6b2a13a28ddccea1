"""Pairs of target and draft: acceptance by their laws, and speed beside plain decoding (Leviathan et al. 2023, 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean, stdev

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.drafting.options import parse_drafter
from headstart.drafting.registry import drafter_options
from headstart.errors import ConfigError
from headstart.loading.model import Model
from headstart.sampling.params import SamplingParams
from headstart_lab.acceptance.measuring import Acceptance, measure_acceptance
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.bench.run import BenchRuns, Sitting
from headstart_lab.bench.summary import Spread, summarise
from headstart_lab.theory import formulas as theory
from headstart_lab.workbench import PLAIN, Contender, Workbench, most_rows


@dataclass(frozen=True)
class Pair:
    """A draft under the target, as the user wrote it, options included.

    Raises:
        ConfigError: the draft is unknown, guesses nothing, or has a draft length of its own.
    """

    draft: str

    def __post_init__(self) -> None:
        name, options = parse_drafter(self.draft)
        if name == PLAIN:
            raise ConfigError(f"drafts name {PLAIN!r}, which guesses nothing; name a drafter that does.")
        known = {option.name for option in fields(drafter_options(name))}
        if "draft_tokens" not in known:
            raise ConfigError(f"drafter {name!r} has no draft length (draft_tokens); name one that drafts chains.")
        if "draft_tokens" in options:
            raise ConfigError(f"drafter {self.draft!r} names draft_tokens; leave it out, gammas say the draft lengths.")

    def contender(self, temperature: float, gamma: int) -> Contender:
        """The drafter at a draft length. Where the target samples, one that can guess or draw draws, as in the paper:
        both laws are standardised alike (4.2)."""
        name, options = parse_drafter(self.draft)
        may_draw = "sample" in {option.name for option in fields(drafter_options(name))} and "sample" not in options
        drawn = ":sample=true" if may_draw and temperature > 0 else ""
        return Contender.parse(f"{self.draft}{drawn}:draft_tokens={gamma}")


@dataclass(frozen=True)
class Rate:
    """A mean of values in [0, 1]."""

    mean: float
    error: float
    """Its standard error, were the values independent."""
    count: int

    @classmethod
    def of_chances(cls, chances: Sequence[float]) -> Rate | None:
        """Of probabilities; None: there are none."""
        if not chances:
            return None
        spread = stdev(chances) if len(chances) > 1 else 0.0
        return cls(fmean(chances), spread / math.sqrt(len(chances)), len(chances))

    @classmethod
    def of_counts(cls, hits: int, tries: int) -> Rate | None:
        """Of events that happened or did not; None: none was tried."""
        if not tries:
            return None
        rate = hits / tries
        return cls(rate, math.sqrt(rate * (1 - rate) / tries), tries)


@dataclass(frozen=True)
class Row:
    """One pair on one task, at one temperature and draft length."""

    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: Rate | None
    """By Corollary 3.6, over the target's own text where there was a guess; None: there was none."""
    guessed: float
    """Part of the text's tokens for which there was a guess."""
    counted: Rate | None
    """Accepted guesses over those that were looked at, of the runs with speculation, repeats left out."""
    tokens_per_round: float
    expected_tokens: float | None
    """Equation 1 with ``alpha``, averaged over the draft lengths that occurred."""
    c: float | None
    """Time of one draft step over that of plain decoding's pass."""
    pass_ratio: float
    """Time of a pass over a draft over that of plain decoding's; Theorem 3.8 takes it for 1."""
    speed: Spread
    """Over plain decoding, by repeats; prompts' reading left out."""
    expected_speed: float | None
    """Theorem 3.8 with ``alpha`` and ``c``, likewise."""

    @property
    def surprise(self) -> float | None:
        """How far the counted rate lies above ``alpha``, in standard errors of the difference if both were equal."""
        if self.alpha is None or self.counted is None:
            return None
        alpha = min(self.alpha.mean, 1.0)
        error = math.hypot(self.alpha.error, math.sqrt(alpha * (1 - alpha) / self.counted.count))
        return (self.counted.mean - self.alpha.mean) / error if error else None

    @property
    def speed_error(self) -> float | None:
        """Measured over expected speed, less 1."""
        return self.speed.middle / self.expected_speed - 1 if self.expected_speed else None


@dataclass
class Sheet:
    """What was measured at one temperature."""

    temperature: float
    acceptances: dict[Pair, Acceptance] = field(default_factory=dict)
    runs: BenchRuns = field(default_factory=BenchRuns)
    contenders: dict[str, tuple[Pair, int]] = field(default_factory=dict)
    """Name of each in the runs -> its pair and draft length."""

    def rows(self) -> Iterator[Row]:
        """Task by task, pair by pair, draft length by draft length: those that were measured."""
        for task in dict.fromkeys(run.group for run in self.runs.runs):
            runs = BenchRuns([run for run in self.runs.runs if run.group == task])
            for summary in summarise(runs):
                if summary.name == PLAIN:
                    continue
                pair, gamma = self.contenders[summary.name]
                own = [run for run in runs.runs if run.contender == summary.name]
                # A repeat says the same again, of the same draws: it is timed, and no further sample.
                told = [run for run in own if run.repeat == own[0].repeat]
                positions = [each for each in self.acceptances[pair].positions if each.group == task]
                chances = [each.guess.accepted for each in positions if each.guess.accepted is not None]
                alpha, forecast = Rate.of_chances(chances), summary.forecast
                expected = None
                if alpha is not None and forecast is not None:
                    depths = [depth for run in own for depth in run.depths]
                    expected = fmean(theory.expected_tokens(alpha.mean, depth) for depth in depths)
                yield Row(
                    task=task,
                    draft=pair.draft,
                    temperature=self.temperature,
                    gamma=gamma,
                    alpha=alpha,
                    guessed=len(chances) / len(positions) if positions else 0.0,
                    counted=Rate.of_counts(
                        sum(sum(run.stats.accepted_per_position) for run in told),
                        sum(sum(run.stats.drafted_per_position) for run in told),
                    ),
                    tokens_per_round=summary.mean_accepted_length,
                    expected_tokens=expected,
                    c=None if forecast is None else forecast.c,
                    pass_ratio=summary.pass_ratio,
                    speed=summary.mean.speedup,
                    expected_speed=None
                    if expected is None or forecast is None
                    else expected / (1.0 + forecast.gamma * forecast.c),
                )


def measure(
    model: Model,
    pairs: Sequence[Pair],
    gammas: Sequence[int],
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    repeats: int,
    sheet: Sheet,
    verify: VerifyRule = VerifyRule.REJECTION,
    on_turn: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Measure all pairs at one temperature.

    Args:
        gammas: draft lengths, each timed.
        params: of every request; names a seed if it samples.
        sheet: empty; filled as it goes, so that a measurement that is cut short keeps what it has.
        verify: of the runs that are timed and counted. Corollary 3.6 and Equation 1 speak of rejection, the paper's
            Algorithm 1; block verification accepts more.
        on_turn: called after each text with its tokens: one a pair and turn for acceptance, and one a contender, turn
            and repeat for speed.

    Raises:
        ConfigError, CheckpointError: a draft cannot be built for this target, or no prompt fits.
        RequestError: a prompt cannot be rendered, or a sequence failed.
    """
    by_gamma = {(pair, gamma): pair.contender(params.temperature, gamma) for pair in pairs for gamma in gammas}
    listed = list(by_gamma.values())
    rows = most_rows(listed)
    for pair in pairs:
        bench = Workbench.of_model(model, draft_rows=rows)
        contender = by_gamma[pair, max(gammas)]
        sheet.acceptances[pair] = measure_acceptance(
            model, bench, contender, prompts, params, on_turn, speculating=False
        )
    sheet.contenders = {contender.name: key for key, contender in by_gamma.items()}
    plain = Contender.parse(PLAIN)
    bench = Workbench.of_model(model, draft_rows=rows)
    sitting = Sitting(model, bench, [plain, *listed], params, SpeculationParams(verify=verify))
    sheet.runs = sitting.results
    sitting.run(prompts, repeats, lambda run: on_turn(run.stats.tokens))
