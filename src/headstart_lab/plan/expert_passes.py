"""What passes of a model with experts cost: rows, distinct experts, time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from headstart.models.experts_config import ExpertsConfig
from headstart_charts.page import Cell, Table

_LEAST_HALF = 4
"""Passes of a half that says something."""


@dataclass(frozen=True)
class ExpertPass:
    """One pass that was timed."""

    rows: int
    experts: float
    """Distinct experts that they called, on average over the layers of experts."""
    seconds: float


@dataclass(frozen=True)
class ExpertCost:
    """Passes of equally many rows."""

    rows: int
    passes: int
    at_random: float
    """Distinct experts that so many rows would call, were each row's chosen at random."""
    experts: float
    """Distinct experts that they called, the mean."""
    seconds: float
    """The median."""
    fewer: tuple[float, float] | None
    """Experts and seconds of the half of the passes that called fewer; None: there are too few."""
    more: tuple[float, float] | None
    """The same of the half that called more."""


def at_random(count: int, used: int, rows: float) -> float:
    """Distinct experts of ``count`` that rows are expected to call, each of which chooses ``used`` whatever the others
    choose, all experts alike likely: count (1 - (1 - used / count)^rows)."""
    return float(count * (1 - (1 - used / count) ** rows))


def expert_costs(config: ExpertsConfig, passes: Sequence[ExpertPass]) -> list[ExpertCost]:
    """By rows."""
    by_rows: dict[int, list[ExpertPass]] = defaultdict(list)
    for each in passes:
        by_rows[each.rows].append(each)
    costs = []
    for rows, alike in sorted(by_rows.items()):
        ranked = sorted(alike, key=lambda each: each.experts)
        half = len(ranked) // 2
        differ = half >= _LEAST_HALF and ranked[0].experts < ranked[-1].experts
        costs.append(
            ExpertCost(
                rows,
                len(alike),
                at_random(config.count, config.used, float(rows)),
                *_typical(alike),
                _typical(ranked[:half]) if differ else None,
                _typical(ranked[-half:]) if differ else None,
            )
        )
    return costs


def expert_table(config: ExpertsConfig, costs: Sequence[ExpertCost]) -> Table:
    """A line for each number of rows."""
    rows: list[tuple[Cell, ...]] = []
    for each in costs:
        halves: list[Cell] = []
        for half in (each.fewer, each.more):
            halves += [None, None] if half is None else [half[0], 1e3 * half[1]]
        rows.append((each.rows, each.passes, each.at_random, each.experts, 1e3 * each.seconds, *halves))
    return Table(
        "Rows, distinct experts, time",
        (
            *("rows", "passes", "experts at random", "distinct experts", "ms"),
            *("fewer experts", "ms", "more experts", "ms"),
        ),
        tuple(rows),
        f"{config.used} of {config.count} experts for each row; distinct ones that the rows of a pass called, averaged "
        "over layers. Fewer and more: the halves of the passes of so many rows that called fewer and more of them.",
        decimals=(0, 0, 1, 1, 2, 1, 2, 1, 2),
    )


def _typical(passes: Sequence[ExpertPass]) -> tuple[float, float]:
    return fmean(each.experts for each in passes), median(each.seconds for each in passes)
