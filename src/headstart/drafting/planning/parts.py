"""What a planner is made of: the one place where somebody who measures a part of it puts another in its stead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstart.drafting.base import Drafter, SequenceView
from headstart.drafting.planning.expert_calls import ExpertCalls
from headstart.drafting.planning.members import Member, credits_of
from headstart.drafting.planning.pass_trials import Trials, try_all
from headstart.drafting.planning.planned_stretch import Lane, PlannedStretch
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.passes.rounds import StretchLimits
from headstart.passes.runner import ModelRunner


@dataclass(frozen=True)
class PlannerParts:
    """Each makes a part, or is one. None of them changes what is said, only how fast."""

    member: Callable[[Drafter, int], Member] = Member
    """What is known of one drafter: its rates and its worth, and so whether it is asked."""
    costs: Callable[[ExpertCalls | None], RoundCosts] = RoundCosts
    """What rounds cost, and so how many guesses are verified."""
    credits: Callable[[Sequence[Member]], list[int]] = credits_of
    """Whose merit a guess is that several drafters made."""
    trials: Callable[[ModelRunner], Trials] = try_all
    """What passes cost, before the first request."""
    stretch: Callable[
        [Sequence[SequenceView], Sequence[StretchLimits], Sequence[Lane], RoundCosts], PlannedStretch | None
    ] = PlannedStretch.of
    """Several rounds at once; None: none just now."""
