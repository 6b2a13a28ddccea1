"""Tables in the forms of the paper's tables 2, 3 and 4, and everything as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headstart_charts.page import Cell, Drawing, Table
from headstart_lab.bench.summary import Spread
from headstart_lab.paper.measuring import Rate, Row
from headstart_lab.paper.pictures import figure_1, figure_5
from headstart_lab.paper.tracing import Line, TracedRound, TracedRun
from headstart_lab.theory.published import TABLE_4

FORMAT = "headstart-paper/1"
STAR = " ★"


def to_json(
    rows: Sequence[Row], runs: Sequence[TracedRun], lines: Sequence[Line], record: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything as plain values, ``record`` first."""
    return {
        "format": FORMAT,
        **record,
        "rows": [{**asdict(row), "surprise": row.surprise, "speed_error": row.speed_error} for row in rows],
        "figure_1": [asdict(line) for line in lines],
        "figure_5": [
            {"label": run.label, "encoder": run.encoder, "rounds": list(map(asdict, run.rounds))} for run in runs
        ],
    }


def from_json(written: Mapping[str, Any]) -> tuple[list[Row], list[TracedRun], list[Line]]:
    """What ``to_json`` made plain: rows, runs without their prompts, and lines."""
    rows = []
    for each in written["rows"]:
        fields = {key: value for key, value in each.items() if key not in ("surprise", "speed_error")}
        rates = {key: None if each[key] is None else Rate(**each[key]) for key in ("alpha", "counted")}
        rows.append(Row(**{**fields, **rates, "speed": Spread(**each["speed"])}))
    runs = [
        TracedRun(
            run["label"],
            (),
            run["encoder"],
            tuple(TracedRound(**{**each, "accepted": tuple(each["accepted"])}) for each in run["rounds"]),
        )
        for run in written["figure_5"]
    ]
    return rows, runs, [Line(**line) for line in written["figure_1"]]


def exhibits(
    rows: Sequence[Row], runs: Sequence[TracedRun], lines: Sequence[Line], target: str
) -> list[Table | Drawing]:
    """What a reader wants to see, the most important first."""
    shown: list[Table | Drawing] = [table_2(rows, target), table_4(rows), table_3(rows, target), printed()]
    if runs:
        shown.append(figure_5(runs))
    if lines:
        shown.append(figure_1(lines))
    return shown


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Of each task, draft and temperature the draft length that Theorem 3.8 prefers, as the paper chose it (3.5)."""
    best: dict[tuple[str, str, float], Row] = {}
    for row in rows:
        key = row.task, row.draft, row.temperature
        if key not in best or (row.expected_speed or 0.0) > (best[key].expected_speed or 0.0):
            best[key] = row
    return list(best.values())


def table_2(rows: Sequence[Row], target: str) -> Table:
    """Speed by task, draft and temperature (the form of the paper's table 2)."""
    picked = chosen(rows)
    fastest: dict[tuple[str, float], float] = {}
    for row in picked:
        key = row.task, row.temperature
        fastest[key] = max(fastest.get(key, 0.0), row.speed.middle)
    cells: list[tuple[Cell, ...]] = [
        (
            row.task,
            row.draft + STAR * (row.speed.middle == fastest[row.task, row.temperature]),
            f"{row.temperature:g}",
            row.gamma,
            _mean(row.alpha),
            f"{row.speed.middle:.2f}x",
            f"{row.speed.low:.2f}–{row.speed.high:.2f}" if row.speed.low < row.speed.high else None,
        )
        for row in picked
    ]
    return Table(
        f"Speed over plain decoding of {target} (form of the paper's table 2)",
        ("task", "draft", "temp", "γ", "α", "speed", "repeats"),
        tuple(cells),
        "γ: of those that were timed, the one that Theorem 3.8 expects most of. α: Corollary 3.6. ★: the fastest of a "
        "task and temperature.",
    )


def table_3(rows: Sequence[Row], target: str) -> Table:
    """Acceptance of every pair: by the laws, and as counted (the form of the paper's table 3)."""
    cells: list[tuple[Cell, ...]] = [
        (
            f"{target} ({row.task})",
            row.draft,
            f"{row.temperature:g}",
            _mean(row.alpha),
            _error(row.alpha),
            f"{row.guessed:.0%}",
            row.gamma,
            _mean(row.counted),
            _error(row.counted),
            None if row.alpha is None or row.counted is None else f"{row.counted.mean - row.alpha.mean:+.3f}",
            row.surprise,
            row.tokens_per_round,
            row.expected_tokens,
        )
        for row in rows
    ]
    return Table(
        "Acceptance of every pair, by its laws and counted (form of the paper's table 3)",
        (
            *("target", "draft", "T", "α", "± error", "guessed", "γ", "counted", "± error", "difference"),
            *("in errors", "tokens a round", "by Eq. 1"),
        ),
        tuple(cells),
        "α: mean of Σ min(p, q) over the target's own text, where there was a guess (Corollary 3.6). counted: accepted "
        "guesses over those looked at, in runs with speculation; of draws, those that the rule in the settings "
        "accepts (block verification accepts more than α says). Errors are standard errors of independent values. The "
        "two differ by chance, and because a guess is looked at only behind accepted ones: acceptance is not alike at "
        "all places, as Equation 1 assumes.",
        decimals=(0, 0, 0, 3, 3, 0, 0, 3, 3, 0, 1, 2, 2),
    )


def table_4(rows: Sequence[Row]) -> Table:
    """Expected against measured speed (the form of the paper's table 4)."""
    cells: list[tuple[Cell, ...]] = [
        (
            row.task,
            row.draft,
            f"{row.temperature:g}",
            row.gamma,
            _mean(row.alpha),
            row.c,
            row.pass_ratio,
            row.expected_speed,
            row.speed.middle,
            None if row.speed_error is None else f"{row.speed_error:+.0%}",
        )
        for row in rows
    ]
    return Table(
        "Expected and measured speed (form of the paper's table 4)",
        ("task", "draft", "temp", "γ", "α", "c", "pass", "exp", "emp", "error"),
        tuple(cells),
        "c: time of a draft step over that of a plain pass, measured; what a draft model takes to read its prompt is "
        "among its steps' time. exp: Theorem 3.8 with α and c, for the draft "
        "lengths that occurred. It takes a pass over γ + 1 rows to be as cheap as one over a single row, and "
        "verification to be free; pass: what such a pass took over a plain one. error: emp over exp, less 1.",
        decimals=(0, 0, 0, 0, 2, 3, 2, 2, 2, 0),
    )


def printed() -> Table:
    """The paper's own tables 2 and 4, to be read beside ours."""
    cells: list[tuple[Cell, ...]] = [
        (row.task, row.draft, f"{row.temperature}", row.gamma, row.alpha, row.c, row.expected, row.measured)
        for row in TABLE_4
    ]
    return Table(
        "As the paper printed it: T5-XXL (11B) on a TPU v4 (its tables 2 and 4)",
        ("task", "draft", "temp", "γ", "α", "c", "exp", "emp"),
        tuple(cells),
        decimals=(0, 0, 0, 0, 2, 2, 1, 1),
    )


def _mean(rate: Rate | None) -> float | None:
    return None if rate is None else rate.mean


def _error(rate: Rate | None) -> float | None:
    return None if rate is None else rate.error
