"""The planner with one of its parts taken out, to see what that part brings (``headstart bench --cells --without``)."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headstart.drafting.context import Memory, ScopedMemory
from headstart.drafting.planning import guess_rates, learned_acceptance, pass_trials, planned_stretch
from headstart.drafting.planning.expert_calls import ExpertCalls
from headstart.drafting.planning.guess_rates import GuessRates, first_rates
from headstart.drafting.planning.learned_acceptance import Clues, LearnedAcceptance
from headstart.drafting.planning.members import OWN_WEIGHT, Member, Standing, credits_of
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_costs import PassCosts
from headstart.drafting.planning.pass_trials import Trials
from headstart.drafting.planning.planned_stretch import PlannedStretch
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.errors import ConfigError, closest
from headstart.passes.draft_tree import MAX_GRADES
from headstart_lab.workbench import ALL

_RATE = 0.25
"""Of a guess that nobody knows anything about."""
Class = TypeVar("Class")


@dataclass(frozen=True)
class Part:
    """One part of the planner, and how to do without it."""

    name: str
    instead: str
    """What happens without it."""
    sources: tuple[Any, ...]
    """Modules, classes, functions and properties that it consists of."""
    without: Callable[[PlannerParts], PlannerParts]

    @property
    def lines(self) -> int:
        """Of its Python source, blank ones left out."""
        # A property has no source of its own.
        texts = [inspect.getsource(getattr(each, "fget", each)) for each in self.sources]
        return sum(bool(line.strip()) for text in texts for line in text.splitlines())


def mixed(mixin: type[Class], base: Callable[..., Class]) -> type[Class]:
    """What ``base`` makes, with what ``mixin`` changes of it."""
    assert isinstance(base, type)
    made: type[Class] = type(mixin.__name__, (mixin,) if base in mixin.__mro__ else (mixin, base), {})
    return made


def named_parts(names: str) -> list[Part]:
    """Parts by name, with commas between them; "all": each. If there are any, the last is none: the planner as it is,
    once more, shows how far equals differ.

    Raises:
        ConfigError: there is no such part.
    """
    listed = [each.strip() for each in names.split(",") if each.strip()]
    for name in listed:
        if name != ALL and name not in PARTS:
            near = closest(name, PARTS)
            hint = f" (did you mean {near!r}?)" if near else ""
            known = ", ".join(PARTS)
            raise ConfigError(f"--without names {name!r}, which is no part of the planner{hint}; there are {known}.")
    named = [PARTS[name] for name in (PARTS if ALL in listed else dict.fromkeys(listed))]
    return [*named, NOTHING] if named else []


class _Anew(ScopedMemory[Memory]):
    """Remembers nothing."""

    def __getitem__(self, scope: Hashable) -> Memory:
        return self._new()


class _Graded(LearnedAcceptance):
    """Stays with the graded rates."""

    @property
    def weights(self) -> Clues:
        return self._graded

    def learn(self, clues: Clues, held: Sequence[bool]) -> None:
        pass


class _WithoutLearnt(Member):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.learned = ScopedMemory(_Graded)


class _OneRate(GuessRates):
    """The same rate for all grades."""

    __slots__ = ()

    def count(self, grade: int, accepted: bool) -> None:
        super().count(0, accepted)
        self.rates[:] = self.rates[:1] * len(self.rates)
        self.log_odds[:] = self.log_odds[:1] * len(self.log_odds)


class _WithoutGrades(Member):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates = ScopedMemory(lambda: _OneRate([_RATE] * (3 * MAX_GRADES), 1.0, 1000.0))

    def own_rates(self, scope: Hashable) -> GuessRates:
        return _OneRate(self.rates[scope], OWN_WEIGHT, 40.0)


class _WithoutScopes(Member):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates = _Anew(self.rates._new)
        self.learned = _Anew(self.learned._new)


class _WithoutOwnRates(Member):
    def own_rates(self, scope: Hashable) -> GuessRates:
        return self.rates[scope]


class _WithoutProbes(Member):
    @property
    def probe_is_due(self) -> bool:
        return False


class _WithoutRests(Member):
    def rests(self, standing: Standing, roots: int) -> bool:
        return False

    def loses(self, asked: Sequence[Standing], roots: int) -> bool:
        return False


class _WithoutForgetting(Member):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates = ScopedMemory(lambda: first_rates(self.drafter, math.inf))

    def own_rates(self, scope: Hashable) -> GuessRates:
        return GuessRates(self.rates[scope], OWN_WEIGHT, math.inf)


class _LastingCosts(PassCosts):
    def stale(self, rows: int, passes: int) -> bool:
        return super().stale(rows, sys.maxsize)


class _CostsWithoutForgetting(RoundCosts):
    def __init__(self, calls: ExpertCalls | None = None) -> None:
        super().__init__(calls)
        self.passes = _LastingCosts(calls)


class _WithoutPromptShares(RoundCosts):
    def nodes_beside_prompts(self, sequences: int, reach: Sequence[float]) -> int:
        return 0

    def may_pay_beside_prompts(self, sequences: int) -> bool:
        return False


class _WithoutFloor(RoundCosts):
    @property
    def min_probability(self) -> float | None:
        return None


def _listed_first(members: Sequence[Member]) -> list[int]:
    """Credits to the member that is listed first, whatever it costs."""
    return [(bits & -bits).bit_length() - 1 for bits in range(1 << len(members))]


def _members(mixin: type[Member]) -> Callable[[PlannerParts], PlannerParts]:
    return lambda parts: replace(parts, member=mixed(mixin, parts.member))


def _costs(mixin: type[RoundCosts]) -> Callable[[PlannerParts], PlannerParts]:
    return lambda parts: replace(parts, costs=mixed(mixin, parts.costs))


def _without_forgetting(parts: PlannerParts) -> PlannerParts:
    return _costs(_CostsWithoutForgetting)(_members(_WithoutForgetting)(parts))


def _without_lanes(parts: PlannerParts) -> PlannerParts:
    stretch = parts.stretch
    return replace(
        parts,
        stretch=lambda views, limits, lanes, costs: stretch(views, limits, lanes, costs) if len(lanes) < 2 else None,
    )


NOTHING = Part("nothing", "as it is: what this row shows is chance", (), lambda parts: parts)
PARTS = {
    part.name: part
    for part in (
        Part(
            "learnt-acceptance",
            "guesses are estimated by the rates of their grades alone",
            (learned_acceptance,),
            _members(_WithoutLearnt),
        ),
        Part("grades", "a drafter's guesses all have one rate", (guess_rates,), _members(_WithoutGrades)),
        Part(
            "scopes", "each request begins with what comes with the drafters", (ScopedMemory,), _members(_WithoutScopes)
        ),
        Part("own-rates", "requests of a scope share their rates", (Member.own_rates,), _members(_WithoutOwnRates)),
        Part(
            "lanes",
            "where several drafters are followed, rounds are run one by one",
            (planned_stretch.Lane, PlannedStretch._learn_worth),
            _without_lanes,
        ),
        Part(
            "probes",
            "whoever rests is never asked again",
            (Member.probe_is_due, Member.rested),
            _members(_WithoutProbes),
        ),
        Part(
            "rests",
            "every drafter is asked in every round",
            (Member.rests, Member.loses, Member.judge, Member.usual, Standing),
            _members(_WithoutRests),
        ),
        Part(
            "merits",
            "a guess of several drafters is credited to the one listed first",
            (credits_of,),
            lambda parts: replace(parts, credits=_listed_first),
        ),
        Part(
            "prompt-shares",
            "nothing is guessed in passes that read prompts",
            (RoundCosts.nodes_beside_prompts, RoundCosts.may_pay_beside_prompts, RoundCosts._token_seconds),
            _costs(_WithoutPromptShares),
        ),
        Part(
            "forgetting",
            "rates and the costs of passes never grow old",
            (PassCosts.stale,),
            _without_forgetting,
        ),
        Part(
            "trial-passes",
            "what passes cost is found out while decoding",
            (pass_trials,),
            lambda parts: replace(parts, trials=lambda runner: Trials()),
        ),
        Part(
            "min-probability",
            "drafters look for paths down to their own bound",
            (RoundCosts.min_probability, RoundCosts.budget),
            _costs(_WithoutFloor),
        ),
        Part(
            "rounds-at-once",
            "rounds are run one by one",
            (planned_stretch,),
            lambda parts: replace(parts, stretch=lambda views, limits, lanes, costs: None),
        ),
    )
}
"""By name."""
