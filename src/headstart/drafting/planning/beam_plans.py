"""How deep the trees of a beam search should be: a level pays if the step that it may save is worth its rows.

A step comes free only where all beams that come out of it were guessed, so what is learnt is how often a whole level
holds, not single guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, beam_of
from headstart.drafting.beam_trees import WIDER, groups_of
from headstart.drafting.planning.pass_costs import Recent
from headstart.drafting.planning.round_costs import RoundCosts

_PRIOR, _PRIOR_WEIGHT = 0.4, 4.0
"""How often a level is taken to hold before it was tried, and as how many trials that counts."""
_MEMORY = 0.97
"""What a trial still counts after the next one."""
_AGAIN = 24
"""Rounds without guesses after which they are tried again."""


class BeamPlans:
    """Learns from all searches of a planner.

    Args:
        costs: of rounds, as measured.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs
        self._tried: list[float] = []
        self._held: list[float] = []
        self._draft = Recent()
        self._depths: dict[int, int] = {}
        """Group -> levels of the trees of this round."""
        self._rested = 0

    def budgets(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftBudget]:
        """Budgets with as many levels as pay, for the beams among the sequences."""
        planned = list(budgets)
        for beam, places in groups_of(sequences):
            given = budgets[places[0]]
            per_level = WIDER * beam.width
            most = min(given.depth, -(-given.group_nodes // per_level))
            context = len(sequences[places[0]].tokens)
            levels = self._levels(len(places), per_level, most, context) if most else 0
            self._rested = 0 if levels else self._rested + 1
            if not levels and most and self._rested > _AGAIN:
                levels, self._rested = most, 0
            for place in places:
                nodes = min(budgets[place].group_nodes, levels * per_level)
                planned[place] = replace(
                    budgets[place], nodes=min(budgets[place].nodes, nodes), depth=levels, group_nodes=nodes
                )
        return planned

    def drafted(self, seconds: float, depths: dict[int, int]) -> None:
        """A round's trees are ready.

        Args:
            seconds: that they took.
            depths: group -> levels of its trees.
        """
        self._depths = depths
        if any(depths.values()):
            self._draft.add(seconds)

    def learn(self, outcomes: Sequence[RoundOutcome]) -> None:
        """A round is over. Beams of one group have gone equally far."""
        for outcome in outcomes:
            beam = beam_of(outcome.sequence)
            if beam is None or not outcome.committed:
                continue
            for level in range(min(self._depths.pop(beam.group, 0), len(outcome.committed))):
                if level == len(self._tried):
                    self._tried.append(_PRIOR_WEIGHT)
                    self._held.append(_PRIOR * _PRIOR_WEIGHT)
                self._tried[level] = _MEMORY * self._tried[level] + 1
                self._held[level] = _MEMORY * self._held[level] + (len(outcome.committed) > level + 1)

    def _levels(self, roots: int, per_level: int, most: int, context: int) -> int:
        """Levels, up to ``most``, with which a search gets furthest in a second."""
        costs = self._costs
        if not costs.passes.known:
            return most
        seconds = costs.passes.seconds(roots, roots + most * per_level, context)
        best, levels = 1 / (seconds[0] + costs.other_seconds), 0
        steps = reach = 1.0
        for level in range(1, most + 1):
            if level * per_level >= len(seconds):
                break
            reach *= self._rate(level - 1)
            steps += reach
            pace = steps / (seconds[level * per_level] + costs.other_seconds + self._draft.value)
            if pace > best:
                best, levels = pace, level
        return levels

    def _rate(self, level: int) -> float:
        return self._held[level] / self._tried[level] if level < len(self._tried) else _PRIOR
