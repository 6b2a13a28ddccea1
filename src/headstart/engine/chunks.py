"""How many rows of prompts a pass reads beside sequences that decode."""

from __future__ import annotations

from headstart.drafting.planning.constants import STEPS
from headstart.drafting.planning.pass_costs import PassCosts

_LEAST = 64
"""Fewer in a pass make reading slow beside what each pass says."""
_DEARER = 1.25
"""Times the cheapest row that rows of shorter chunks may cost; timings differ by less, accelerators' rows by more."""


def chunk_rows(costs: PassCosts, decoding: int, most: int, context: float) -> int:
    """As few as cost hardly more each than those of longer chunks: whoever decodes waits for the whole pass. Where rows
    cost next to nothing, as on an accelerator, that is the longest chunk; where each costs the same, the shortest.

    Args:
        costs: of passes, by their rows.
        decoding: rows of those that decode.
        most: rows of a pass.
        context: tokens that a row sees, on average.
    """
    sizes = [step for step in STEPS if decoding + _LEAST <= step < most] + [max(most, decoding + 1)]
    if not costs.known:
        return sizes[-1] - decoding
    each = [costs.seconds(rows, rows, context)[0] / rows for rows in sizes]
    return next(rows - decoding for rows, one in zip(sizes, each, strict=True) if one <= _DEARER * min(each))
