"""Whether a target's own weights in few bits are worth asking where nobody names drafters, by what passes cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from headstart.drafting.base import Drafter
from headstart.drafting.context import DraftContext
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.pass_trials import TriedPass
from headstart.errors import ConfigError


@runtime_checkable
class TimesTokens(Protocol):
    """A drafter that reads a model's weights anew for each token of a draft."""

    def token_seconds(self) -> float:
        """What one takes, just now."""
        ...


def gain(passes: Sequence[TriedPass], token_seconds: float) -> float:
    """Speed over plain decoding at the best length of a chain whose guesses hold at ``ITSELF_CHANCE``."""
    rows, seconds = [each.rows for each in passes], [each.seconds for each in passes]
    best, tokens = 1.0, 1.0
    for length in range(1, c.ITSELF_LONGEST + 1):
        tokens += c.ITSELF_CHANCE**length
        taken = length * token_seconds + float(np.interp(1 + length, rows, seconds))
        best = max(best, tokens * seconds[0] / taken)
    return best


def worth_asking(
    context: DraftContext, passes: Sequence[TriedPass], create: Callable[[DraftContext], Drafter]
) -> Drafter | None:
    """The drafter that ``create`` makes of the target's own weights, if it pays; None: it does not, or there is no room
    for it, or the target has few bits as it is, or is over before it counts."""
    backend = None if context.runner is None else context.runner.backend
    # Of the native pass, which alone has other weights.
    bits: float = getattr(backend, "layer_bits", 0.0)
    if context.lend_itself is None or bits < c.ITSELF_BITS:
        return None
    if not passes or passes[0].rows != 1 or passes[0].seconds < c.ITSELF_SECONDS:
        return None
    try:
        drafter = create(context)
    except ConfigError:
        return None
    if not isinstance(drafter, TimesTokens):
        return None
    seconds = drafter.token_seconds()
    if gain(passes, seconds) < c.ITSELF_GAIN:
        return None
    context.tell(
        "Drafting with the model itself in few bits, since nothing else guesses for it: a token takes "
        f"{seconds / passes[0].seconds:.0%} of a plain pass (--drafter none, or another, leaves that out)."
    )
    return drafter
