"""The planner with one of its parts taken out, to see what that part brings (``headstart bench --cells --without``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headstart.drafting.base import DraftBudget
from headstart.drafting.planning import allowances, guess_rates, pass_trials, planned_stretch
from headstart.drafting.planning.allowances import Allowance, Load, Safeguard
from headstart.drafting.planning.guess_rates import GuessRates, SequenceRates
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_costs import PassCosts
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.errors import ConfigError, closest
from headstart.passes.adapters import Adapter
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


class _OneRate(GuessRates):
    """The same rate for all grades."""

    __slots__ = ()

    def count(self, grade: int, accepted: bool) -> None:
        super().count(0, accepted)
        self.rates[:] = self.rates[:1] * len(self.rates)


class _WithoutGrades(Member):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates = _OneRate([_RATE] * (3 * MAX_GRADES), 1.0)


class _Everybodys(SequenceRates):
    """Those of all sequences."""

    __slots__ = ()

    def count(self, grade: int, accepted: bool) -> None:
        self._shared.count(grade, accepted)


class _WithoutOwnRates(Member):
    def own_rates(self, adapter: Adapter | None = None) -> SequenceRates:
        return _Everybodys(self.rates)


class _AlwaysAsked(Member):
    def asks(self, own: Allowance, load: Load) -> bool:
        return True


class _Unguarded(Safeguard):
    def allows(self, load: Load) -> bool:
        return not self.plain.due(load)


class _WithoutFloor(RoundCosts):
    def budgets(self, given: Sequence[DraftBudget]) -> list[DraftBudget]:
        return list(given)


class _LastingCosts(PassCosts):
    def _is_forgotten(self, step: int) -> bool:
        return self._last_seen[step] < 0


class _CostsWithoutForgetting(RoundCosts):
    def __init__(self) -> None:
        super().__init__()
        self.passes = _LastingCosts()


def _members(mixin: type[Member]) -> Callable[[PlannerParts], PlannerParts]:
    return lambda parts: replace(parts, member=mixed(mixin, parts.member))


def _costs(mixin: type[RoundCosts]) -> Callable[[PlannerParts], PlannerParts]:
    return lambda parts: replace(parts, costs=mixed(mixin, parts.costs))


NOTHING = Part("nothing", "as it is: what this row shows is chance", (), lambda parts: parts)
PARTS = {
    part.name: part
    for part in (
        Part("grades", "a drafter's guesses all have one rate", (guess_rates,), _members(_WithoutGrades)),
        Part("own-rates", "requests share their rates", (SequenceRates,), _members(_WithoutOwnRates)),
        Part(
            "forgetting",
            "the costs of passes never grow old",
            (PassCosts._is_forgotten,),
            _costs(_CostsWithoutForgetting),
        ),
        Part(
            "allowances",
            "every drafter is asked wherever anybody is",
            (Member.asks, Member.settle, Member.rested),
            _members(_AlwaysAsked),
        ),
        Part(
            "safeguard",
            "drafters are asked whatever was lost",
            (allowances,),
            lambda parts: replace(parts, safeguard=mixed(_Unguarded, parts.safeguard)),
        ),
        Part(
            "min-probability",
            "drafters look for paths down to their own bound",
            (RoundCosts.budgets,),
            _costs(_WithoutFloor),
        ),
        Part(
            "trial-passes",
            "what passes cost is found out while decoding",
            (pass_trials,),
            lambda parts: replace(parts, trials=lambda runner: ()),
        ),
        Part(
            "rounds-at-once",
            "rounds are run one by one",
            (planned_stretch,),
            lambda parts: replace(parts, stretch=lambda *told: None),
        ),
    )
}
"""By name."""
