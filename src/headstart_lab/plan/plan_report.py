"""A plan as JSON, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headstart_charts.page import Cell, Table
from headstart_charts.plots import Curve, Figure
from headstart_lab.plan.forecast import Checked, Forecast, Plan
from headstart_lab.plan.pass_times import PassTimes

FORMAT = "headstart-plan/3"


def to_json(plan: Plan, record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values; ``record``: provenance, model and settings, which come first."""
    return {
        "format": FORMAT,
        **record,
        "skipped": plan.skipped,
        "passes": [
            {"context": times.context, "batch": batch, "rows": rows, "seconds": seconds, **_experts(times, batch, rows)}
            for times in plan.passes
            for batch, curve in times.seconds.items()
            for rows, seconds in curve.items()
        ],
        "drafters": [
            {
                "drafter": each.name,
                "rounds": len(each.accepted),
                "longest_draft": each.longest,
                "rounds_of": [
                    {
                        "batch": batch,
                        "draft_base_seconds": costs.draft_base,
                        "draft_step_seconds": costs.draft_step,
                        "other_seconds": costs.other,
                        "other_seconds_per_node": costs.other_step,
                    }
                    for batch, costs in each.seconds.items()
                ],
            }
            for each in plan.profiles
        ],
        "forecasts": [_row(each) for each in plan.forecasts],
        "recommended": [
            {**_row(best), "options": plan.limits(best).command}
            for best in (plan.best(batch) for batch in _batches(plan))
        ],
        "checked": [
            {
                **_row(each.expected),
                "options": plan.limits(each.expected).command,
                "texts": each.texts,
                "measured_tokens_a_round": each.tokens,
                "measured_tokens_per_second": each.measured,
                "error": _error(each),
                "speedup_error": each.expected.speedup / _measured_speedup(plan, each) - 1,
            }
            for each in plan.checked
        ],
    }


def exhibits(plan: Plan) -> list[Table | Figure]:
    """What a reader wants to see, the most important first."""
    shown: list[Table | Figure] = [_recommended(plan)]
    if plan.checked:
        shown.append(_checked(plan))
    shown += [_drafters(plan), *_lengths(plan), *_speedups(plan), _pass_figure(plan)]
    if any(times.experts for times in plan.passes):
        shown.append(_expert_table(plan))
    if plan.skipped:
        shown.append(Table("Left out", ("drafter", "why"), tuple(plan.skipped.items())))
    return shown


def _recommended(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for batch in _batches(plan):
        best = plan.best(batch)
        figures = best.length, best.nodes, best.tokens, best.tokens_per_second, best.speedup
        rows.append((batch, *figures, plan.limits(best).command))
    return Table(
        "Recommended",
        ("sequences together", "draft length", "tree nodes", "tokens a round", "tokens/s", "speed-up", ""),
        tuple(rows),
        "Predicted from measured costs and acceptance; prefill left out. The options are those of headstart generate. "
        "0 nodes: speculation would lose.",
        decimals=(0, 0, 0, 2, 1, 2, 0),
    )


def _checked(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in plan.checked:
        expected, speedup = each.expected, _measured_speedup(plan, each)
        rows.append(
            (
                *(expected.drafter, expected.batch, expected.length, expected.nodes),
                *(expected.tokens_per_second, each.measured, 100 * _error(each)),
                *(expected.speedup, speedup, 100 * (expected.speedup / speedup - 1)),
                *(expected.tokens, each.tokens, each.texts),
            )
        )
    return Table(
        "Prediction and measurement",
        (
            *("drafter", "sequences together", "draft length", "tree nodes"),
            *("predicted tokens/s", "measured", "error %", "predicted speed-up", "measured", "error %"),
            *("predicted tokens a round", "measured", "texts"),
        ),
        tuple(rows),
        "On the same prompts; passes were timed again between them. Of several sequences, while all of them decoded.",
        decimals=(0, 0, 0, 0, 1, 1, 1, 2, 2, 1, 2, 2, 0),
    )


def _drafters(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            *(each.name, best.length, best.nodes, best.tokens, best.speedup),
            *(1e3 * costs.draft_base, 1e3 * costs.draft_step, 1e3 * costs.other, 1e3 * costs.other_step),
        )
        for each in plan.profiles
        for best, costs in [(plan.best(1, each.name), each.costs(1))]
    ]
    return Table(
        "Drafters, one sequence at a time",
        (
            *("drafter", "best length", "best nodes", "tokens a round", "speed-up"),
            *("draft ms", "ms a level", "other ms", "ms a node"),
        ),
        tuple(rows),
        decimals=(0, 0, 0, 2, 2, 2, 3, 2, 3),
    )


def _lengths(plan: Plan) -> list[Table]:
    """One sequence at a time; the figures have the other batches."""
    columns = {
        each.name: {one.length: one.speedup for one in plan.by_length(1, each.name)} for each in plan.profiles[1:]
    }
    lengths = sorted({length for column in columns.values() for length in column})
    if not lengths:
        return []
    rows: list[tuple[Cell, ...]] = [
        (length, *(column.get(length) for column in columns.values())) for length in lengths
    ]
    return [
        Table(
            "Speed-up by draft length, one sequence at a time",
            ("levels at most", *columns),
            tuple(rows),
            "Predicted, each at its best tree size; a dash: the drafter never went so deep.",
        )
    ]


def _speedups(plan: Plan) -> list[Figure]:
    figures = []
    for batch in _batches(plan):
        together = f"{batch} sequence{'s' * (batch > 1)} together"
        by_length, by_nodes = [], []
        for each in plan.profiles[1:]:
            lengths, sizes = plan.by_length(batch, each.name), plan.by_nodes(batch, each.name)
            by_length.append(
                Curve(each.name, [0, *(one.length for one in lengths)], [1, *(one.speedup for one in lengths)])
            )
            by_nodes.append(Curve(each.name, [0, *(one.nodes for one in sizes)], [1, *(one.speedup for one in sizes)]))
        if by_length:
            title, y = f"Speed-up over plain decoding, {together}", "predicted speed-up"
            figures.append(Figure(title, "draft length, each at its best tree size", y, tuple(by_length)))
            figures.append(Figure(title, "nodes of a tree, each at its best draft length", y, tuple(by_nodes)))
    return figures


def _pass_figure(plan: Plan) -> Figure:
    curves = [
        Curve(
            f"context {times.context}, batch {batch}",
            [batch * rows for rows in curve],
            [1e3 * s for s in curve.values()],
        )
        for times in plan.passes
        for batch, curve in times.seconds.items()
    ]
    return Figure("Target pass", "rows, over all sequences", "milliseconds", tuple(curves))


def _expert_table(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (times.context, batch, batch * rows, called, 1e3 * times.seconds[batch][rows])
        for times in plan.passes
        for batch, curve in times.experts.items()
        for rows, called in curve.items()
    ]
    return Table(
        "Rows, distinct experts, time",
        ("context", "sequences together", "rows", "distinct experts", "ms"),
        tuple(rows),
        "Passes over the prompts' own tokens; distinct experts that the rows of a pass called, on average over layers.",
        decimals=(0, 0, 0, 1, 2),
    )


def _experts(times: PassTimes, batch: int, rows: int) -> dict[str, float]:
    """Distinct experts of a pass, where there are any."""
    curve = times.experts.get(batch, {})
    return {"experts": curve[rows]} if rows in curve else {}


def _batches(plan: Plan) -> list[int]:
    return list(plan.passes[-1].seconds)


def _row(each: Forecast) -> dict[str, Any]:
    return {**asdict(each), "tokens_per_second": each.tokens_per_second}


def _error(each: Checked) -> float:
    """Tokens per second, predicted over measured, less 1."""
    return each.expected.tokens_per_second / each.measured - 1


def _measured_speedup(plan: Plan, checked: Checked) -> float:
    """Over plain decoding, which was tried first in each batch."""
    plain = next(each for each in plan.checked if each.expected.batch == checked.expected.batch)
    return checked.measured / plain.measured
