"""What cells amount to: the worst of them, all of them, one chart, and what each part of the planner brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median, mode, quantiles
from typing import Any

from headstart.drafting.options import parse_drafter
from headstart_charts.bars import Bar, BarChart
from headstart_charts.page import Cell as Value
from headstart_charts.page import Table
from headstart_lab.bench.cells import FORMAT, SHORT, Cell, Turn
from headstart_lab.bench.cells_run import PLANNER, Entrant
from headstart_lab.bench.planner_parts import NOTHING
from headstart_lab.bench.summary import Spread
from headstart_lab.workbench import PLAIN

_WORST = 12
"""Cells that are listed as the worst."""
_BLUR = 0.01
"""A part that brings less than this in the median is never seen."""


@dataclass(frozen=True)
class CellSummary:
    """One contender in one cell, over the repeats."""

    cell: Cell
    contender: str
    repeats: int
    ratio: Spread
    """Speed over plain decoding's in the same repeat, prompts included; where work is counted, bytes of weights."""
    decoding: Spread | None
    """The same of answers alone: each user's time after the prompt. None: work is counted."""
    plain: float
    """Plain decoding's tokens per second, or bytes of weights a token."""
    round_tokens: float
    differing: int
    """Repeats whose texts are not plain decoding's though they must be."""
    rows: float | None = None
    """Rows of the target's passes a token; None: work is not counted. Likewise:"""
    calls: float | None = None
    """Calls of drafters a token."""


def summarise(turns: Sequence[Turn]) -> list[CellSummary]:
    """One for each contender but plain decoding and each cell that it was measured in, in the order of measuring."""
    by_key: dict[tuple[Cell, str], dict[int, Turn]] = {}
    for turn in turns:
        by_key.setdefault((turn.cell, turn.contender), {})[turn.repeat] = turn
    found = []
    for (cell, contender), own in by_key.items():
        plain = by_key.get((cell, PLAIN), {})
        pairs = [(plain[repeat], turn) for repeat, turn in own.items() if repeat in plain]
        if contender == PLAIN or not pairs:
            continue
        counted = pairs[0][1].work is not None
        tokens = sum(turn.tokens for _, turn in pairs)
        works = [turn.work for _, turn in pairs if turn.work is not None]
        found.append(
            CellSummary(
                cell,
                contender,
                len(pairs),
                ratio=Spread.of([cost(other) / cost(turn) for other, turn in pairs]),
                decoding=None if counted else Spread.of([_decoding(other) / _decoding(turn) for other, turn in pairs]),
                plain=median(cost(other) if counted else 1 / cost(other) for other, _ in pairs),
                round_tokens=tokens / max(sum(turn.rounds for _, turn in pairs), 1),
                differing=sum(turn.must_agree and turn.texts != other.texts for other, turn in pairs),
                rows=sum(work.rows for work in works) / tokens if works else None,
                calls=sum(work.calls for work in works) / tokens if works else None,
            )
        )
    return found


def cost(turn: Turn) -> float:
    """Of a token: bytes of weights where work was counted, else seconds."""
    return (turn.seconds if turn.work is None else turn.work.bytes) / turn.tokens


def _decoding(turn: Turn) -> float:
    return turn.user_seconds / turn.tokens


def worst(summaries: Sequence[CellSummary], contender: str) -> CellSummary | None:
    """The cell in which a contender gains least; None: it was measured in none."""
    own = [each for each in summaries if each.contender == contender]
    return min(own, key=lambda each: each.ratio.middle, default=None)


def to_json(
    turns: Sequence[Turn],
    summaries: Sequence[CellSummary],
    entrants: Sequence[Entrant],
    left_out: Mapping[str, str],
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything as plain values. ``record``: provenance, model and settings, which come first."""
    names = [each.name for each in entrants[1:] if each.part is None]
    return {
        "format": FORMAT,
        **record,
        "left_out": dict(left_out),
        "worst": {name: None if (found := worst(summaries, name)) is None else asdict(found) for name in names},
        "cells": [asdict(each) for each in summaries],
        "over_best": [asdict(each) for each in over_best(turns, entrants)],
        "parts": [asdict(each) for each in contributions(turns, entrants)],
        "turns": [turn.row() for turn in turns],
    }


def exhibits(
    turns: Sequence[Turn],
    summaries: Sequence[CellSummary],
    entrants: Sequence[Entrant],
    left_out: Mapping[str, str],
) -> list[Table | BarChart]:
    """What a reader wants to see, the most important first."""
    whole = [each for each in entrants[1:] if each.part is None]
    shown: list[Table | BarChart] = []
    if len(whole) < len(entrants) - 1:
        shown.append(part_table(contributions(turns, entrants)))
    if beside := over_best(turns, entrants):
        shown.append(best_table(beside))
    for each in whole:
        own = [summary for summary in summaries if summary.contender == each.name]
        if own:
            shown += [worst_table(each.name, own), chart(each.name, own)]
    shown.append(cell_table("All cells", summaries))
    differing = [each for each in summaries if each.differing]
    shown.append(cell_table("Texts that are not plain decoding's though they must be", differing))
    shown.append(Table("Left out", ("what", "why"), tuple(left_out.items())))
    return shown


def worst_table(name: str, own: Sequence[CellSummary]) -> Table:
    """The cells in which a contender gains least."""
    ranked = sorted(own, key=lambda each: each.ratio.middle)
    first, losing = ranked[0], sum(each.ratio.middle < 1 for each in own)
    table = cell_table(f"{name}: the worst of {len(own)} cells is {first.cell.name}", ranked[:_WORST])
    note = f"{losing} of {len(own)} cells are slower than plain decoding. {table.note}"
    return Table(table.title, table.columns, table.rows, note, table.decimals)


def cell_table(title: str, summaries: Sequence[CellSummary]) -> Table:
    """A line for each."""
    counted = any(each.rows is not None for each in summaries)
    rows: list[tuple[Value, ...]] = []
    for each in summaries:
        middle, low, high = each.ratio.middle, each.ratio.low, each.ratio.high
        more: tuple[Value, ...] = (each.plain, each.rows, each.calls)
        if each.decoding is not None:
            more = (each.decoding.middle, each.plain)
        rows.append((each.cell.name, each.contender, middle, f"{low:.2f}–{high:.2f}", *more, each.round_tokens))
    own = ("bytes a token, plain", "rows a token", "calls a token") if counted else ("answers alone", "plain tokens/s")
    note = "Medians of the repeats and their range, beside plain decoding of the same requests in the same repeat. "
    note += (
        "Work in place of time: bytes of weights that passes and drafters read."
        if counted
        else "Over plain: whole answers, prompts included. Answers alone: each user's time after the prompt."
    )
    columns = ("cell", "drafter", "over plain", "repeats", *own, "tokens a round")
    return Table(title, columns, tuple(rows), note, (0, 0, 2, 0, *((0, 2, 2) if counted else (2, 1)), 2))


def chart(name: str, own: Sequence[CellSummary]) -> BarChart:
    """The groups of each kind of cell together; the worst cell in the title."""
    kinds: dict[str, list[float]] = {}
    for each in own:
        stand = each.cell.stand
        inputs = "" if stand.input == SHORT else f" {stand.input}"
        kinds.setdefault(f"{stand.precision}{inputs} ×{stand.users} T={each.cell.temperature:g}", []).append(
            each.ratio.middle
        )
    bars = [Bar(kind, median(ratios), min(ratios), max(ratios)) for kind, ratios in kinds.items()]
    least = min(own, key=lambda each: each.ratio.middle)
    return BarChart(
        f"{name} over plain decoding; worst {least.ratio.middle:.2f}: {least.cell.name}",
        "factor, median of the groups of prompts, and their range",
        tuple(bars),
        1.0,
    )


@dataclass(frozen=True)
class OverBest:
    """The planner beside the best of the single drafters, in one cell."""

    cell: Cell
    best: str
    """Whose speed, the median of the repeats, is the highest; plain decoding is none of them."""
    gain: Spread
    """The planner's speed over that one's in the same repeat."""


def over_best(turns: Sequence[Turn], entrants: Sequence[Entrant]) -> list[OverBest]:
    """Of the cells that ``auto`` and others were measured in; empty: not both are entrants."""
    whole = [each.name for each in entrants[1:] if each.part is None]
    planners = [name for name in whole if parse_drafter(name)[0] == PLANNER]
    costs: dict[Cell, dict[str, dict[int, float]]] = {}
    for turn in turns:
        costs.setdefault(turn.cell, {}).setdefault(turn.contender, {})[turn.repeat] = cost(turn)
    found = []
    for cell, by_name in costs.items() if planners else ():
        own = by_name.get(planners[0], {})
        singles = {name: by_name[name] for name in whole if name in by_name and name not in planners}
        if own and singles:
            best = min(singles, key=lambda name, singles=singles: median(singles[name].values()))  # type: ignore[misc]
            gains = [singles[best][repeat] / own[repeat] for repeat in own.keys() & singles[best].keys()]
            found.append(OverBest(cell, best, Spread.of(gains)))
    return found


def best_table(found: Sequence[OverBest]) -> Table:
    """A line for each group of prompts."""
    groups: dict[str, list[OverBest]] = {}
    for each in found:
        groups.setdefault(each.cell.group, []).append(each)
    middles = {group: median(each.gain.middle for each in own) for group, own in groups.items()}
    rows: list[tuple[Value, ...]] = []
    for group, own in groups.items():
        least = min(own, key=lambda each: each.gain.middle)
        usual = mode(each.best for each in own)
        rows.append((group, len(own), usual, middles[group], least.gain.middle, least.best, least.cell.name))
    worst_group = min(middles, key=middles.__getitem__)
    return Table(
        f"{PLANNER} over the best single drafter: {median(middles.values()) - 1:+.1%} in the median group, "
        f"{middles[worst_group] - 1:+.1%} in the worst ({worst_group})",
        ("group", "cells", "best single, mostly", "median", "worst cell", "best single there", "which"),
        tuple(rows),
        "Speed, prompts included, over that of the drafter that is the fastest in this very cell, in the same repeat. "
        "The fastest is known only afterwards, and is chosen among figures that chance moves, too.",
        (0, 0, 0, 3, 3, 0, 0),
    )


@dataclass(frozen=True)
class Contribution:
    """What one part of the planner brings."""

    part: str
    instead: str
    lines: int
    """Of its Python source."""
    cells: int
    gain: Spread
    """Over the cells: the planner's speed over that without the part, in the same repeat, the median of repeats."""
    middle_half: tuple[float, float]
    """Quartiles of the same."""
    least: str
    """The cell in which it brings least,"""
    most: str
    """and most."""
    worst_without: float
    """The least of all cells' speed over plain decoding, without it."""
    blur: float = _BLUR
    """Less than this in the median is chance: by so much equals differ in the middle half of cells."""

    @property
    def verdict(self) -> str:
        """In a word: more than the blur in the median, and on the same side in three cells of four."""
        low, high = self.middle_half
        if self.gain.middle > 1 + self.blur and low > 1:
            return "pays"
        return "costs" if self.gain.middle < 1 - self.blur and high < 1 else "not seen"


def contributions(turns: Sequence[Turn], entrants: Sequence[Entrant]) -> list[Contribution]:
    """One for each part that was taken out and measured, what brings most first."""
    costs = {(turn.contender, turn.cell, turn.repeat): cost(turn) for turn in turns}
    cells = dict.fromkeys(turn.cell for turn in turns)
    repeats = sorted({turn.repeat for turn in turns})
    found = []
    for each in entrants:
        if each.part is None:
            continue

        def over(cell: Cell, other: str, name: str = each.name) -> float | None:
            """The median speed of ``other`` over that without the part, or the reverse for plain decoding."""
            pairs = [
                costs[name, cell, repeat] / costs[other, cell, repeat]
                for repeat in repeats
                if (name, cell, repeat) in costs and (other, cell, repeat) in costs
            ]
            return median(pairs) if pairs else None

        gains = {cell: gain for cell in cells if (gain := over(cell, each.text)) is not None}
        plain = [1 / ratio for cell in gains if (ratio := over(cell, PLAIN)) is not None]
        if gains:
            values = list(gains.values())
            quarters = quantiles(values * 2 if len(values) == 1 else values, n=4, method="inclusive")
            found.append(
                Contribution(
                    each.part.name,
                    each.part.instead,
                    each.part.lines,
                    len(gains),
                    Spread.of(values),
                    middle_half=(quarters[0], quarters[2]),
                    least=min(gains, key=gains.__getitem__).name,
                    most=max(gains, key=gains.__getitem__).name,
                    worst_without=min(plain, default=0.0),
                )
            )
    equals = [abs(quartile - 1) for each in found if each.part == NOTHING.name for quartile in each.middle_half]
    return [replace(each, blur=max([_BLUR, *equals])) for each in sorted(found, key=lambda each: -each.gain.middle)]


def part_table(found: Sequence[Contribution]) -> Table:
    """A line for each part."""
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            each.part,
            each.verdict,
            each.gain.middle,
            f"{each.middle_half[0]:.3f}–{each.middle_half[1]:.3f}",
            each.gain.low,
            each.gain.high,
            each.worst_without,
            each.lines,
            each.least,
            each.most,
            each.instead,
        )
        for each in found
    )
    return Table(
        "What each part of the planner brings",
        (
            "part",
            "verdict",
            "brings",
            "middle half of cells",
            "least",
            "most",
            "worst cell over plain without it",
            "lines",
            "where it brings least",
            "where most",
            "without it",
        ),
        rows,
        "The planner's speed over that without the part, on the same requests in the same repeat: medians of the "
        f"repeats, over {found[0].cells if found else 0} cells. Not seen: less than "
        f"{found[0].blur if found else _BLUR:.1%} in the median, by which equals differ in the middle half of cells, "
        "or not of one sign in three cells of four. Lines are of Python alone, blank ones left out; what compiled code "
        "does for a part is not counted.",
        (0, 0, 3, 0, 3, 3, 2, 0, 0, 0, 0),
    )
