"""Contenders whose figure needs a word: nothing of theirs was accepted, or their speed was too uneven."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.common.ratio import Ratio
from headstart.drafting.options import parse_drafter
from headstart.drafting.registry import available_drafters
from headstart_lab.bench.summary import Summary
from headstart_lab.workbench import PLAIN

_IDLE = 0.02
"""Part of the guesses up to which nothing can be said to be accepted."""


def remarks(summaries: Sequence[Summary]) -> dict[str, str]:
    """Contender -> what must be known of it."""
    said = {}
    for summary in summaries:
        sentences = [each for each in (idle(summary), uneven(summary)) if each]
        if summary.name != PLAIN and sentences:
            said[summary.name] = " ".join(sentences)
    return said


def idle(summary: Summary) -> str:
    """Why next to nothing of it was accepted; empty: something was."""
    rate = summary.acceptance_rate
    if rate is not None and rate > _IDLE:
        return ""
    name, options = parse_drafter(summary.name)
    info = available_drafters().get(name)
    begun = "It guessed nothing" if rate is None else f"{rate:.1%} of its guesses were accepted"
    model = options.get("model")
    if model is not None:
        return f"{begun}: {model} has learnt too little of what this target says; train it longer (headstart train)."
    if info is not None and info.untaught:
        return (
            f"{begun}: without a model it runs {info.untaught}, which nobody has taught to guess; name one "
            "(model=DIR), such as headstart train draft-model makes."
        )
    return f"{begun}: what it knows does not occur in these texts."


def uneven(summary: Summary) -> str:
    """That its speed-up cannot be told; empty: it can."""
    spread = summary.mean.speedup
    ratio = Ratio(spread.middle, spread.low, spread.high, 2)
    if not ratio.uncertain:
        return ""
    return f"Its speed-up lay between {spread.low:.2f} and {spread.high:.2f}: too uncertain to name a factor."
