"""Speculative and plain decoding that took turns: how much faster is one, and can that be told at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headstart.common.ratio import Ratio

if TYPE_CHECKING:
    from headstart.common.machine_load import MachineLoad
    from headstart.engine.outputs import SequenceStats


@dataclass(frozen=True)
class Timed:
    """One way of decoding, once."""

    tokens: int
    seconds: float
    prefill_seconds: float
    """0 where it cannot be told apart."""

    @property
    def decoding_seconds(self) -> float:
        return self.seconds - self.prefill_seconds

    @property
    def speed(self) -> float:
        """Tokens a second after prefill."""
        return self.tokens / self.decoding_seconds if self.decoding_seconds > 0 else 0.0

    def __add__(self, other: Timed) -> Timed:
        return Timed(
            self.tokens + other.tokens, self.seconds + other.seconds, self.prefill_seconds + other.prefill_seconds
        )


@dataclass
class Turns:
    """Both ways, one right after the other, several times."""

    speculative: list[Timed] = field(default_factory=list)
    plain: list[Timed] = field(default_factory=list)

    def add(self, speculative: Timed, plain: Timed) -> None:
        self.speculative.append(speculative)
        self.plain.append(plain)

    def follow(self, other: Turns) -> None:
        """What was decoded after this, turn by turn; turns that only one of them has are left out."""
        if not self.plain:
            self.speculative, self.plain = list(other.speculative), list(other.plain)
            return
        self.speculative = [a + b for a, b in zip(self.speculative, other.speculative, strict=False)]
        self.plain = [a + b for a, b in zip(self.plain, other.plain, strict=False)]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in (*self.speculative, *self.plain))

    @property
    def ratio(self) -> Ratio | None:
        """Speculative over plain decoding speed, turn by turn."""
        pairs = zip(self.speculative, self.plain, strict=True)
        return Ratio.of([fast.speed / slow.speed for fast, slow in pairs if fast.speed and slow.speed])


def decoding_speed(stats: SequenceStats) -> float | None:
    """Tokens a second after prefill."""
    seconds = stats.seconds - stats.prefill_seconds
    return stats.tokens / seconds if stats.tokens and seconds > 0 else None


def explained(ratio: Ratio, load: MachineLoad, acceptance: float | None, drafter: str) -> list[str]:
    """What a user must know of a factor: what it is, why it is uncertain, and why it is no gain if it is none.

    Args:
        load: while it was measured.
        acceptance: part of the guesses that were accepted; None: nothing was guessed.
        drafter: its name.
    """
    lines = [f"Speed-up: {ratio}."]
    loss = ratio.middle < 1 if not ratio.uncertain else ratio.low < 1
    if load.busy:
        help_ = " Run it again when they are done." if loss or ratio.uncertain or ratio.turns == 1 else ""
        lines.append(f"{load.sentence}{help_}")
    if loss and not (load.busy and ratio.uncertain):
        if acceptance is None:
            why = f"{drafter} guessed nothing in this text, so that there was nothing to gain"
        else:
            why = f"{acceptance:.0%} of the guesses were accepted, and checking them costs more than that saves here"
        lines.append(f"No gain: {why}. headstart bench finds the drafter that pays on this machine.")
    elif ratio.uncertain and not load.busy:
        lines.append("The machine was not busy with other programs: its own speed changes. Measure a longer text.")
    return lines
