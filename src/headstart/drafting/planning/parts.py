"""What a planner is made of: the one place where somebody who measures a part of it puts another in its stead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from headstart.drafting.base import Drafter, RoundOutcome
from headstart.drafting.planning.allowances import Safeguard
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.pass_trials import TriedPass, try_passes
from headstart.drafting.planning.planned_stretch import Lane, PlannedStretch
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.passes.rounds import StretchLimits
from headstart.passes.runner import ModelRunner

Stretching = Callable[
    [Sequence[Followed], Sequence[StretchLimits], Sequence[Lane], RoundCosts, Safeguard, Callable[[], float]],
    PlannedStretch | None,
]


@dataclass(frozen=True)
class PlannerParts:
    """Each makes a part, or is one. None of them changes what is said, only how fast."""

    member: Callable[[Drafter, int], Member] = Member
    """What is known of one drafter: its rates and allowances."""
    costs: Callable[[], RoundCosts] = RoundCosts
    """What rounds cost, and so how many guesses are verified."""
    safeguard: Callable[[], Safeguard] = Safeguard
    """What guesses may lose."""
    trials: Callable[[ModelRunner], Sequence[TriedPass]] = try_passes
    """What passes cost, before the first request."""
    stretch: Stretching = PlannedStretch.of
    """Several rounds at once; None: none just now."""
    clock: Callable[[], float] = time.perf_counter
    """What time it is, in seconds,"""
    pass_seconds: Callable[[RoundOutcome], float] = attrgetter("pass_seconds")
    """and how long a pass took."""
