"""What a drafter would bring, as JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headstart_charts.page import Cell, Table
from headstart_charts.plots import Curve, Figure
from headstart_lab.plan.what_if import WhatIf

FORMAT = "headstart-what-if/1"


def to_json(found: Sequence[WhatIf], record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values; ``record`` comes first."""
    return {"format": FORMAT, **record, "what_if": [_row(each) for each in found]}


def _row(each: WhatIf) -> dict[str, Any]:
    return {
        "drafter": each.drafter,
        "batch": each.batch,
        "rates": list(each.rates),
        "source": each.source,
        "best_guesses": each.best.guesses,
        "tokens_per_second": each.best.tokens_per_second,
        "speedup": each.speedup,
        "reason": each.reason,
        "lengths": [{**asdict(chain), "tokens_per_second": chain.tokens_per_second} for chain in each.chains],
    }


def exhibits(found: Sequence[WhatIf]) -> list[Table | Figure]:
    """The answers, what they are made of, and how they change with the length of drafts."""
    return [_answers(found), *[_lengths(each) for each in found], _figure(found)]


def _answers(found: Sequence[WhatIf]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in found:
        best, plain = each.best, each.chains[0]
        figures = plain.tokens_per_second, best.tokens_per_second, each.speedup
        rows.append((each.batch, best.guesses, best.tokens / each.batch, *figures, each.reason))
    named, source = found[0].drafter, found[0].source
    how = "" if found[0].has_weights else " with random weights"
    rates = ", ".join(f"{rate:.2f}" for rate in found[0].rates)
    return Table(
        f"What {named} would bring",
        ("sequences together", "guesses", "tokens a round", "plain tokens/s", "tokens/s", "speed-up", "why no more"),
        tuple(rows),
        f"Costs measured here{how}; the first, the first two, ... guesses are right at {rates} "
        f"({source}). Chains of guesses; prefill left out.",
        decimals=(0, 0, 2, 1, 1, 2, 0),
    )


def _lengths(each: WhatIf) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            *(chain.guesses, chain.tokens / each.batch, 1e3 * chain.draft, 1e3 * chain.target, 1e3 * chain.other),
            *(chain.tokens_per_second, chain.tokens_per_second / each.chains[0].tokens_per_second),
        )
        for chain in each.chains
    ]
    return Table(
        f"By guesses of a round, {each.batch} sequence{'s' * (each.batch > 1)} together",
        ("guesses", "tokens a round", "draft ms", "target pass ms", "other ms", "tokens/s", "speed-up"),
        tuple(rows),
        decimals=(0, 2, 2, 2, 2, 1, 2),
    )


def _figure(found: Sequence[WhatIf]) -> Figure:
    curves = [
        Curve(
            f"{each.batch} together",
            [chain.guesses for chain in each.chains],
            [chain.tokens_per_second / each.chains[0].tokens_per_second for chain in each.chains],
        )
        for each in found
    ]
    title = f"Speed-up over plain decoding, if {found[0].drafter} guessed"
    return Figure(title, "guesses of a round", "predicted speed-up", tuple(curves))
