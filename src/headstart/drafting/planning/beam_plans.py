"""How deep and wide the trees of a beam search should be: nodes pay if the steps that they may save are worth their
rows.

A step comes free only where all beams that come out of it were guessed, so what is learnt is how often a whole level
holds, not single guesses; for each of a few widths, since a wider level holds more often and costs more rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, beam_of
from headstart.drafting.beam_trees import groups_of
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.pass_costs import Recent
from headstart.drafting.planning.round_costs import RoundCosts


@dataclass(frozen=True)
class _Shape:
    """Of the trees of a group."""

    width: int = 0
    """Which of ``c.WIDTHS``."""
    levels: int = 0


@dataclass
class _Rates:
    """How often the levels of one width hold."""

    prior: float
    tried: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)

    def __getitem__(self, level: int) -> float:
        return self.held[level] / self.tried[level] if level < len(self.tried) else self.prior

    def count(self, level: int, holds: bool) -> None:
        """A level was tried."""
        if level == len(self.tried):
            self.tried.append(c.LEVEL_WEIGHT)
            self.held.append(self.prior * c.LEVEL_WEIGHT)
        self.tried[level] = c.LEVEL_MEMORY * self.tried[level] + 1
        self.held[level] = c.LEVEL_MEMORY * self.held[level] + holds


class BeamPlans:
    """Learns from all searches of a planner.

    Args:
        costs: of rounds, as measured.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs
        self._rates = [_Rates(prior) for prior in c.LEVEL_RATES]
        self._draft = Recent()
        self._shapes: dict[int, _Shape] = {}
        """Group -> the shape of its trees in this round."""
        self._rested = self._trials = 0

    def budgets(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftBudget]:
        """Budgets with as many nodes as pay, for the beams among the sequences."""
        planned = list(budgets)
        self._shapes = {}
        for beam, places in groups_of(sequences):
            given = budgets[places[0]]
            shape = self._shape(len(places), beam.width, given, len(sequences[places[0]].tokens))
            self._shapes[beam.group] = shape
            level_nodes = c.WIDTHS[shape.width] * beam.width
            for place in places:
                budget = budgets[place]
                nodes = min(budget.group_nodes, shape.levels * level_nodes)
                planned[place] = replace(
                    budget,
                    nodes=min(budget.nodes, nodes),
                    depth=min(budget.depth, shape.levels),
                    group_nodes=nodes,
                    level_nodes=level_nodes,
                )
        return planned

    def drafted(self, seconds: float, depths: dict[int, int]) -> None:
        """A round's trees are ready.

        Args:
            seconds: that they took.
            depths: group -> levels of its trees, which may be fewer than it was allowed.
        """
        self._shapes = {group: replace(shape, levels=depths[group]) for group, shape in self._shapes.items()}
        if any(depths.values()):
            self._draft.add(seconds)

    def learn(self, outcomes: Sequence[RoundOutcome]) -> None:
        """A round is over. Beams of one group have gone equally far."""
        for outcome in outcomes:
            beam = beam_of(outcome.sequence)
            shape = None if beam is None or not outcome.committed else self._shapes.pop(beam.group, None)
            if shape is not None:
                for level in range(min(shape.levels, len(outcome.committed))):
                    self._rates[shape.width].count(level, len(outcome.committed) > level + 1)

    def _shape(self, roots: int, beams: int, budget: DraftBudget, context: int) -> _Shape:
        """With which a search gets furthest in a second."""
        costs, most = self._costs, budget.group_nodes
        widest = _Shape(len(c.WIDTHS) - 1, min(budget.depth, -(-most // (c.WIDTHS[-1] * beams))))
        if not widest.levels or not costs.passes.known:
            return widest
        seconds = costs.passes.seconds(roots, roots + most, context)
        best, found = 1 / (seconds[0] + costs.other_seconds), _Shape()
        for width, wider in enumerate(c.WIDTHS):
            steps = reach = 1.0
            for level in range(1, budget.depth + 1):
                rows = level * wider * beams
                if rows >= len(seconds):
                    break
                reach *= self._rates[width][level - 1]
                steps += reach
                pace = steps / (seconds[rows] + costs.other_seconds + self._draft.value)
                if pace > best:
                    best, found = pace, _Shape(width, level)
        if found.levels:
            self._rested = 0
            return found
        self._rested += 1
        if self._rested <= c.BEAMS_AGAIN:
            return found
        self._rested, self._trials = 0, self._trials + 1
        width = self._trials % len(c.WIDTHS)
        return _Shape(width, min(budget.depth, -(-most // (c.WIDTHS[width] * beams))))
