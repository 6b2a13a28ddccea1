"""Whether a drafter was of any use, in a sentence for whoever has chosen it."""

from __future__ import annotations

from dataclasses import fields

from headstart.drafting import DEFAULT_DRAFTER
from headstart.drafting.registry import drafter_options, found_drafter, is_drafter
from headstart.engine.outputs import SequenceStats

ENOUGH = 24
"""Rounds with guesses before anything is said,"""
ENOUGH_UNTAUGHT = 8
"""and where nobody has taught the drafter to guess, so that a loss is what to expect."""
_SELDOM = 0.05
"""Share of these rounds in which a first guess is right that is as good as none: rows and drafting cost more."""
_LOSS = 0.9
"""A speed-up below this is no noise of the clock,"""
_LONG = 1.0
"""if it was measured over so many seconds."""


class Usefulness:
    """Adds up what one drafter brought."""

    def __init__(self, drafter: str) -> None:
        self._drafter = drafter
        self._guessed = self._right = 0
        self._tokens = self._rounds = 0
        self._draft_seconds = self._target_seconds = 0.0

    def add(self, stats: SequenceStats) -> None:
        """One sequence that has finished. Only those with guesses tell anything."""
        if not stats.drafted_per_position:
            return
        self._guessed += stats.drafted_per_position[0]
        self._right += stats.accepted_per_position[0] if stats.accepted_per_position else 0
        self._tokens += stats.tokens
        self._rounds += stats.rounds
        self._draft_seconds += stats.draft_seconds
        self._target_seconds += stats.target_seconds

    def hint(self, speedup: float | None = None) -> str | None:
        """What is wrong and what to do, in one sentence; None: nothing, or too little is known.

        The default drafter is not judged: it rests where guesses do not pay.

        Args:
            speedup: over plain decoding, where that was measured.
        """
        untaught = self._untaught
        if self._drafter == DEFAULT_DRAFTER or self._guessed < (ENOUGH_UNTAUGHT if untaught else ENOUGH):
            return None
        mend = f"use --drafter {DEFAULT_DRAFTER}, which guesses only where that pays"
        if self._right < _SELDOM * self._guessed:
            cause = untaught or (
                "its head or model is untrained, or was made for another target"
                if self._runs_model
                else "it cannot foresee these texts"
            )
            return f"{self._drafter} guessed right in {self._right} of {self._guessed} rounds: {cause}; {mend}."
        if not untaught and self._draft_seconds + self._target_seconds < _LONG:
            return None
        if speedup is not None:
            slow = speedup < _LOSS
            return f"{self._drafter} decodes {speedup:.2f} times as fast as no drafter; {mend}." if slow else None
        # A plain pass takes no longer than one with guesses, so this much is lost at least.
        rounds_cost = 1 + self._draft_seconds / self._target_seconds if self._target_seconds else 1.0
        brought = self._tokens / self._rounds
        if brought < _LOSS * rounds_cost:
            return (
                f"{self._drafter} makes decoding slower: a round brings {brought:.2f} tokens and takes at least "
                f"{rounds_cost:.2f} times as long as a plain one{untaught and f': {untaught}'}; {mend}."
            )
        return None

    @property
    def _untaught(self) -> str:
        """What it guesses with, if that is nothing that was taught, whatever its options say; empty: something."""
        info = found_drafter(self._drafter)
        if info is None or not info.untaught or self._runs_model:
            return ""
        return f"it runs {info.untaught}, which nobody has taught to guess"

    @property
    def _runs_model(self) -> bool:
        # A drafter may be a class of the caller's own, which no registry knows.
        known = is_drafter(self._drafter)
        return known and any(field.name == "model" for field in fields(drafter_options(self._drafter)))


class UsefulnessWatch:
    """Judges all drafters of an engine while it runs, each as soon as something can be said of it, and once."""

    def __init__(self) -> None:
        self._judged: dict[str, Usefulness | None] = {}

    def add(self, drafter: str | None, stats: SequenceStats) -> str | None:
        """A sequence that has finished; a hint, the first time that there is one."""
        if drafter is None:
            return None
        judged = self._judged.setdefault(drafter, Usefulness(drafter))
        if judged is None:
            return None
        judged.add(stats)
        hint = judged.hint()
        if hint is not None:
            self._judged[drafter] = None
        return hint
