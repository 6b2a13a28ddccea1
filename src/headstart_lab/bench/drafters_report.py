"""A benchmark's figures as JSON, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from headstart_charts.bars import Bar, BarChart
from headstart_charts.page import Cell, Table
from headstart_charts.plots import Curve, Figure
from headstart_lab.bench.reliability import BINS
from headstart_lab.bench.remarks import remarks
from headstart_lab.bench.run import BenchRuns, Run
from headstart_lab.bench.summary import Speed, Summary
from headstart_lab.plan.expert_passes import ExpertCost, expert_costs, expert_table
from headstart_lab.workbench import PLAIN

FORMAT = "headstart-bench/1"
_MOST_CURVES = 6
_POSITIONS = 16
_ONCE = (
    "Measured once, which is too uncertain to name a factor: more time (--minutes), a quieter machine or --repeats "
    "allow medians."
)


def floor_seconds(results: BenchRuns) -> float | None:
    """The least time a pass can take: one read of the weights, the median of those measured; None: never measured."""
    return median(results.read_seconds) if results.read_seconds else None


def to_json(results: BenchRuns, summaries: Sequence[Summary], record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values. ``record``: provenance, model and settings, which come first."""
    return {
        "format": FORMAT,
        **record,
        "floor": {
            "read_seconds": floor_seconds(results),
            "measured_by": "the pass's own threads" if results.read_is_native else "an estimate from other memory",
        },
        **({} if results.experts is None else {"expert_passes": [asdict(each) for each in _expert_costs(results)]}),
        "skipped": results.skipped,
        "remarks": remarks(summaries),
        "contenders": [_contender(summary) for summary in summaries],
        "differences": [
            {"contender": name, "prompt": prompt, "turn": turn, "first": asdict(place)}
            for (name, prompt, turn), place in results.differences.items()
        ],
        "runs": [run_row(run) for run in results.runs],
    }


def _contender(summary: Summary) -> dict[str, Any]:
    values, found = asdict(summary), summary.reliability
    if found is not None:
        values["reliability"] = {
            "counts": found.counts,
            "predicted": found.means,
            "measured": found.frequencies,
            "expected_calibration_error": found.calibration_error,
        }
    return values


def run_row(run: Run) -> dict[str, Any]:
    """One run as plain values; seconds are wall time."""
    return {
        "contender": run.contender,
        "prompt": run.prompt,
        "group": run.group,
        "turn": run.turn,
        "repeat": run.repeat,
        "decode_seconds": run.decode_seconds,
        "draft_levels": sum(run.depths),
        **run.stats.as_dict(),
    }


def exhibits(results: BenchRuns, summaries: Sequence[Summary]) -> list[Table | Figure | BarChart]:
    """What a reader wants to see, the most important first."""
    shown: list[Table | Figure | BarChart] = [
        overview(results, summaries),
        remark_table(summaries),
        by_group(summaries),
        speedups(summaries),
        theory_table(summaries),
        rounds(results, summaries),
        acceptance_table(summaries),
        acceptance_figure(summaries),
    ]
    if any(summary.reliability is not None for summary in summaries):
        shown += [reliability_table(summaries), reliability_figure(summaries)]
    if results.experts is not None:
        shown.append(expert_table(results.experts, _expert_costs(results)))
    if results.differences:
        shown.append(difference_table(results))
    if results.skipped:
        shown.append(Table("Left out", ("what", "why"), tuple(results.skipped.items())))
    return shown


def overview(results: BenchRuns, summaries: Sequence[Summary]) -> Table:
    """A line for each contender."""
    marked = remarks(summaries)
    rows: list[tuple[Cell, ...]] = [
        (
            f"{summary.name} *" if summary.name in marked else summary.name,
            summary.mean.speedup.middle,
            _range(summary.mean),
            f"{summary.turn_quartiles[0]:.2f}–{summary.turn_quartiles[2]:.2f}",
            summary.mean.decoding.middle,
            summary.mean.with_prefill.middle,
            summary.mean_accepted_length,
            _percent(summary.acceptance_rate),
            f"{summary.differing} of {summary.compared}" if summary.compared else None,
        )
        for summary in summaries
    ]
    once = len({run.repeat for run in results.runs}) == 1
    columns = (
        "drafter",
        "speed-up",
        "repeats",
        "middle half of turns",
        "tokens/s",
        "with prefill",
        "tokens a round",
        "accepted",
        "differing",
    )
    return Table(
        "Speed",
        columns,
        tuple(rows),
        "Means over the task groups; of the repeats the median, and their range. Speed-up and tokens/s are of "
        "decoding alone. differing: turns whose tokens are not those of plain decoding although they must be."
        + (f" {_ONCE}" if once else ""),
        decimals=(0, 2, 0, 0, 1, 1, 2, 0, 0),
    )


def remark_table(summaries: Sequence[Summary]) -> Table:
    """What must be known of contenders whose figure says nothing of their kind."""
    return Table("Marked with *", ("drafter", "why"), tuple(remarks(summaries).items()))


def by_group(summaries: Sequence[Summary]) -> Table:
    """Speed-up in each task group."""
    groups = list(summaries[0].groups)
    rows: list[tuple[Cell, ...]] = [
        (each.name, *(each.groups[group].speedup.middle for group in groups), each.mean.speedup.middle)
        for each in summaries
    ]
    return Table("Speed-up by task group", ("drafter", *groups, "mean"), tuple(rows))


def speedups(summaries: Sequence[Summary]) -> BarChart:
    """The mean speed-ups, best first."""
    best = sorted((summary for summary in summaries if summary.name != PLAIN), key=_speedup, reverse=True)
    bars = [Bar(each.name, _speedup(each), each.mean.speedup.low, each.mean.speedup.high) for each in best]
    return BarChart(
        "Speed-up over plain decoding", "factor, mean of the task groups; range over the repeats", tuple(bars), 1.0
    )


def theory_table(summaries: Sequence[Summary]) -> Table:
    """The form of the paper's table 4 (Leviathan et al. 2023, appendix A.3)."""
    rows: list[tuple[Cell, ...]] = [
        (
            summary.name,
            forecast.gamma,
            forecast.alpha,
            forecast.c,
            forecast.expected,
            forecast.expected_at_cost,
            forecast.measured,
        )
        for summary in summaries
        if (forecast := summary.forecast) is not None
    ]
    return Table(
        "Theory beside measurement (form of the paper's table 4)",
        ("drafter", "γ", "α", "c", "EXP", "EXP at cost", "EMP"),
        tuple(rows),
        "γ: mean levels of a draft. α: acceptance per position. c: draft step over plain pass. EXP: Theorem 3.8, as if "
        "acceptance were the same everywhere and verification free. EXP at cost: the tokens a round that were "
        "measured, over the measured cost of draft and pass. EMP: speed-up in decoding, all prompts together.",
        decimals=(0, 1, 2, 3, 2, 2, 2),
    )


def rounds(results: BenchRuns, summaries: Sequence[Summary]) -> Table:
    """What a round consists of, and how far its pass is from the floor."""
    floor = floor_seconds(results)
    rows: list[tuple[Cell, ...]] = []
    for summary in summaries:
        rows.append(
            (
                summary.name,
                1e3 * summary.breakdown.round,
                *map(_percent, summary.breakdown.shares()),
                summary.pass_ratio,
                summary.breakdown.target / floor if floor else None,
            )
        )
    kind = "by the pass's own threads" if results.read_is_native else "estimated with other memory"
    note = "draft's prompts: the drafter's reading of prompts, spread over the rounds." + (
        "" if floor is None else f" The floor is one read of all weights, {kind}: {1e3 * floor:.2f} ms in this sitting."
    )
    if floor is not None and results.experts is not None:
        note += " Of a mixture of experts, a pass reads but those that are called."
    parts = ("target pass", "draft", "draft's prompts", "everything else")
    columns = ("drafter", "ms", *parts, "pass / plain pass", "pass / floor")
    return Table("An average round", columns, tuple(rows), note)


def acceptance_table(summaries: Sequence[Summary]) -> Table:
    """Acceptance by position in the draft."""
    drafting = [summary for summary in summaries if summary.acceptance_by_position]
    positions = min(max((len(each.acceptance_by_position) for each in drafting), default=0), _POSITIONS)
    rows = tuple(
        (
            each.name,
            *(
                each.acceptance_by_position[i] if i < len(each.acceptance_by_position) else None
                for i in range(positions)
            ),
        )
        for each in drafting
    )
    return Table(
        "Acceptance by position in the draft",
        ("drafter", *(str(i + 1) for i in range(positions))),
        rows,
        "How often a guess at this depth was accepted where all above it were.",
    )


def acceptance_figure(summaries: Sequence[Summary]) -> Figure:
    """The same as curves, for the contenders that gain most."""
    drafting = sorted((each for each in summaries if each.acceptance_by_position), key=_speedup, reverse=True)
    curves = [
        Curve(
            each.name,
            [float(i + 1) for i in range(len(each.acceptance_by_position[:_POSITIONS]))],
            each.acceptance_by_position[:_POSITIONS],
        )
        for each in drafting[:_MOST_CURVES]
    ]
    return Figure("Acceptance by position", "position in the draft", "accepted", tuple(curves), y_max=1.0)


def reliability_table(summaries: Sequence[Summary]) -> Table:
    """What drafters said of their guesses, and what became of these."""
    rows = tuple(
        (
            each.name,
            found.guesses,
            found.calibration_error,
            *(
                None if held is None else f"{said:.2f} → {held:.2f} ({count})"
                for said, held, count in zip(found.means, found.frequencies, found.counts, strict=True)
            ),
        )
        for each in summaries
        if (found := each.reliability) is not None
    )
    return Table(
        "Reliability of predicted acceptance",
        ("drafter", "guesses", "error", *(f"{place / BINS:.1f}–{(place + 1) / BINS:.1f}" for place in range(BINS))),
        rows,
        "Verified guesses whose parent was accepted, by the chance that was predicted for them: mean prediction → part "
        "that was accepted (guesses). error: their mean distance (expected calibration error). A planner predicts what "
        "it makes of its drafters' guesses, any other drafter what its head says; those without a head say nothing.",
        decimals=(0, 0, 3, *[0] * BINS),
    )


def reliability_figure(summaries: Sequence[Summary]) -> Figure:
    """The same as curves, for the contenders that gain most; exact predictions lie on the diagonal."""
    saying = sorted((each for each in summaries if each.reliability is not None), key=_speedup, reverse=True)
    curves = [Curve("as predicted", (0.0, 1.0), (0.0, 1.0), dashed=True)]
    for each in saying[: _MOST_CURVES - 1]:
        assert each.reliability is not None
        points = [
            (said, held)
            for said, held in zip(each.reliability.means, each.reliability.frequencies, strict=True)
            if said is not None and held is not None
        ]
        curves.append(Curve(each.name, [said for said, _ in points], [held for _, held in points]))
    return Figure("Reliability of predicted acceptance", "predicted chance", "accepted", tuple(curves), y_max=1.0)


def difference_table(results: BenchRuns) -> Table:
    """Where tokens differ from plain decoding's."""
    rows = tuple(
        (name, prompt, turn + 1, place.index, f"{place.plain} / {place.other}", f"{place.gap:.1e}")
        for (name, prompt, turn), place in results.differences.items()
    )
    return Table(
        "Differences from plain decoding",
        ("drafter", "prompt", "turn", "at token", "plain / this", "top-2 gap"),
        rows,
        "top-2 gap: how far apart the two best tokens are there, as a part of the logits' range; headstart audit "
        "says whether rounding explains it.",
    )


def _expert_costs(results: BenchRuns) -> list[ExpertCost]:
    """Of the passes of all contenders."""
    if results.experts is None:
        return []
    return expert_costs(results.experts, [each for run in results.runs for each in run.passes])


def _speedup(summary: Summary) -> float:
    return summary.mean.speedup.middle


def _range(speed: Speed) -> str:
    return f"{speed.speedup.low:.2f}–{speed.speedup.high:.2f}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
