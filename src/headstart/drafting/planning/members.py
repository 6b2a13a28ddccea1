"""One of several drafters: how often its guesses hold, and what asking and showing it may still cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from headstart.drafting.base import Drafter, TargetSignals
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.allowances import Allowance, Allowances, Load
from headstart.drafting.planning.guess_rates import GuessRates, SequenceRates, first_rates
from headstart.passes.adapters import Adapter


@dataclass(slots=True)
class Brought:
    """What one drafter brought to one sequence in a round in which it was asked."""

    own: Allowance
    """Its allowance for that sequence."""
    gain: float
    """Tokens that the round was expected to bring more than with the drafters listed before it alone,"""
    rows: int
    """and guesses that were verified more."""
    is_new: bool = False
    """Whether it was asked for the first time, which may have taken longer: there is a prompt to learn."""


@dataclass(eq=False)
class Member:
    """One of the drafters. Its allowances are apart for each size of load: among many a guess saves less."""

    drafter: Drafter
    bit: int
    """Marks its own guesses."""
    needs: TargetSignals = field(init=False)
    """What it last asked to be shown."""
    rates: GuessRates = field(init=False)
    """Over all sequences without an adapter."""
    adapted: WeakKeyDictionary[Adapter, GuessRates] = field(default_factory=WeakKeyDictionary)
    """Over all sequences that have one."""
    asking: Allowances = field(default_factory=Allowances)
    """What questions and rows of guesses that brought too little may still take."""
    hearing: Allowances = field(default_factory=Allowances)
    """What showing it prompts and rounds may still take, beyond what it brings."""

    def __post_init__(self) -> None:
        self.rates, self.needs = first_rates(self.drafter), self.drafter.needs

    def own_rates(self, adapter: Adapter | None = None) -> SequenceRates:
        """Of a sequence that begins. Those of all with an adapter start from what the others' have come to."""
        shared = self.rates
        if adapter is not None:
            shared = self.adapted.setdefault(adapter, GuessRates(list(self.rates.rates), c.OWN_WEIGHT))
        return SequenceRates(shared)

    def own_allowance(self, load: Load) -> Allowance:
        """Of a sequence that begins."""
        return Allowance(min(c.OWN, max(self.asking[load.size].rounds, 0.0)))

    def asks(self, own: Allowance, load: Load) -> bool:
        """Whether it is to be asked about a sequence."""
        return own.lasts and self.asking[load.size].lasts

    @property
    def reads_along(self) -> bool:
        """Whether it is shown the target's states."""
        return bool(self.needs.taps)

    def settle(
        self, load: Load, brought: Sequence[Brought], seconds: float, row_seconds: float, plain_seconds: float
    ) -> None:
        """A round is over.

        Args:
            brought: to each sequence that it was asked about.
            seconds: that it took to ask.
            row_seconds: of a verified guess.
            plain_seconds: of a plain round.
        """
        share = load.sequences / plain_seconds
        asked_seconds = 0.0 if any([each.is_new for each in brought]) else seconds / max(len(brought), 1)
        for each in brought:
            each.own.settle(1.0 + each.gain, 1.0 + (each.rows * row_seconds + asked_seconds) * share)
        gain = sum([each.gain for each in brought]) / load.sequences
        taken = (sum([each.rows for each in brought]) * row_seconds + seconds) / plain_seconds
        self.asking[load.size].settle(1.0 + gain, 1.0 + taken)
        self.hearing[load.size].settle(1.0 + gain, 1.0 + taken)

    def rested(self, load: Load, rounds: int) -> None:
        """Some rounds are over in which it was not asked."""
        for allowance in (self.asking[load.size], self.hearing[load.size]):
            allowance.settle(rounds, rounds)

    def read(self, load: Load, seconds: float, plain_seconds: float, of_seconds: float) -> None:
        """It was shown prompts, which took ``seconds``, beside a pass of ``of_seconds``."""
        plain = of_seconds / plain_seconds
        self.hearing[load.size].settle(plain, plain + seconds / plain_seconds)

    def heard(self, load: Load, seconds: float, plain_seconds: float, was_asked: bool) -> None:
        """It was shown what was said in a round. That is part of what questions take, also where it goes on for their
        sake alone."""
        taken, hearing = seconds / plain_seconds, self.hearing[load.size]
        if was_asked or not hearing.lasts:
            self.asking[load.size].settle(0.0, taken)
        hearing.settle(0.0, taken)
