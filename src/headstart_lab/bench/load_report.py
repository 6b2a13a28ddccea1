"""What a server's users waited for, with speculation and without: figures as JSON, tables and plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from headstart_charts.page import Cell, Table
from headstart_charts.plots import Curve, Figure
from headstart_lab.bench.load import Load
from headstart_lab.bench.load_run import OFF, LoadRun

FORMAT = "headstart-bench-serve/1"


@dataclass(frozen=True)
class Spread:
    """Mean, median and 99th percentile (linear between ranks) of some waits, in seconds."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """None where there is nothing to average."""
        if not seconds:
            return None
        p50, p99 = np.percentile(seconds, [50, 99])
        return cls(float(np.mean(seconds)), float(p50), float(p99))


@dataclass(frozen=True)
class LoadSummary:
    """One mode under one load, over all repeats."""

    mode: str
    load: Load
    requests: int
    errors: dict[str, int]
    """Why requests got no answer -> how many."""
    tokens_per_second: float
    """Median of the repeats."""
    ratio: float | None
    """To ``OFF`` in the same repeat: the median; None: that is what it is, or it was not measured."""
    ratio_range: tuple[float, float] | None
    first_token: Spread | None
    per_token: Spread | None
    """Inter-token latency: each request's mean after its first piece."""
    gap: Spread | None
    """Waits between pieces of text; with speculation a piece may hold several tokens."""
    whole: Spread | None
    """From sent to the end."""
    tokens_per_round: float


def summarise(runs: Sequence[LoadRun]) -> list[LoadSummary]:
    """A summary for each mode and load, in the order in which they were first measured."""
    return [_summary(key, runs) for key in dict.fromkeys((run.load, run.mode) for run in runs)]


def to_json(runs: Sequence[LoadRun], summaries: Sequence[LoadSummary], record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values. ``record``: provenance, model and settings, which come first."""
    return {
        "format": FORMAT,
        **record,
        "summaries": [asdict(summary) for summary in summaries],
        "runs": [
            {
                "mode": run.mode,
                "load": asdict(run.load),
                "repeat": run.repeat,
                "tokens_per_second": run.tokens_per_second,
                "answers": [asdict(replace(answered, text="")) for answered in run.answers],
            }
            for run in runs
        ],
    }


def exhibits(summaries: Sequence[LoadSummary]) -> list[Table | Figure]:
    """What a reader wants to see, the most important first."""
    shown: list[Table | Figure] = [throughput(summaries)]
    for title, note, name in (
        ("Time to the first token", "From sending a request to its first piece of text, in ms.", "first_token"),
        (
            "Inter-token latency",
            "Each request's time after its first piece, over the tokens after the first, in ms.",
            "per_token",
        ),
        (
            "Waits between pieces",
            "With speculation a piece holds the tokens of a whole round: fewer, larger pieces. In ms.",
            "gap",
        ),
        ("Whole answers", "From sending a request to the end of its answer, in ms.", "whole"),
    ):
        shown.append(waits(title, note, name, summaries))
    shown += figures(summaries)
    return shown


def throughput(summaries: Sequence[LoadSummary]) -> Table:
    """A line for each mode and load."""
    rows: list[tuple[Cell, ...]] = [
        (
            each.load.name,
            each.mode,
            each.tokens_per_second,
            each.ratio,
            None if each.ratio_range is None else f"{each.ratio_range[0]:.2f}–{each.ratio_range[1]:.2f}",
            each.tokens_per_round,
            f"{sum(each.errors.values())} of {each.requests}",
        )
        for each in summaries
    ]
    note = "Medians over the repeats; each is compared with the run without speculation beside it."
    closed = [each for each in summaries if each.load.rate is None]
    slower = [each.load.name for each in closed if each.ratio is not None and each.ratio < 1]
    if closed:
        note += f" Slower than without speculation: {', '.join(slower)}." if slower else " Never slower than without."
    if len(closed) < len(summaries):
        note += " Where requests come at a rate (/s), throughput is that rate while it can be met: compare the waits."
    return Table(
        "Throughput",
        ("load", "speculation", "tokens/s", "over off", "repeats", "tokens a round", "failed"),
        tuple(rows),
        note,
        decimals=(0, 0, 1, 2, 0, 2, 0),
    )


def waits(title: str, note: str, name: str, summaries: Sequence[LoadSummary]) -> Table:
    """Mean, median and tail of one kind of wait."""
    rows: list[tuple[Cell, ...]] = []
    for each in summaries:
        spread: Spread | None = getattr(each, name)
        figures = (None, None, None) if spread is None else (spread.mean, spread.p50, spread.p99)
        rows.append((each.load.name, each.mode, *(None if value is None else 1e3 * value for value in figures)))
    return Table(title, ("load", "speculation", "mean", "p50", "p99"), tuple(rows), note, decimals=1)


def figures(summaries: Sequence[LoadSummary]) -> list[Figure]:
    """Throughput and the waits' medians over the load, closed and open loop apart."""
    shown = []
    for closed in (True, False):
        of_kind = [each for each in summaries if (each.load.users is not None) == closed]
        if len({each.load for each in of_kind}) < 2:
            continue
        x_label = "requests at a time" if closed else "requests per second"
        for title, y_label, value in (
            ("Throughput", "tokens/s", lambda each: each.tokens_per_second),
            ("Time to the first token, p50", "ms", lambda each: _ms(each.first_token)),
            ("Inter-token latency, p50", "ms", lambda each: _ms(each.per_token)),
        ):
            curves = []
            for mode in dict.fromkeys(each.mode for each in of_kind):
                of_mode = [each for each in of_kind if each.mode == mode]
                x = [float(each.load.users or each.load.rate or 0) for each in of_mode]
                curves.append(Curve(mode, x, [value(each) for each in of_mode], dashed=mode == OFF))
            shown.append(Figure(f"{title} ({'closed' if closed else 'open'} loop)", x_label, y_label, tuple(curves)))
    return shown


def _summary(key: tuple[Load, str], runs: Sequence[LoadRun]) -> LoadSummary:
    load, mode = key
    own = [run for run in runs if (run.load, run.mode) == key]
    off = {run.repeat: run.tokens_per_second for run in runs if (run.load, run.mode) == (load, OFF)}
    ratios = [run.tokens_per_second / off[run.repeat] for run in own if mode != OFF and off.get(run.repeat)]
    served = [answered for run in own for answered in run.served]
    rounds = sum(answered.rounds for answered in served)
    return LoadSummary(
        mode=mode,
        load=load,
        requests=sum(len(run.answers) for run in own),
        errors=dict(Counter(answered.error for run in own for answered in run.answers if answered.error is not None)),
        tokens_per_second=median(run.tokens_per_second for run in own),
        ratio=median(ratios) if ratios else None,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        first_token=Spread.of([answered.first_token_seconds for answered in served]),
        per_token=Spread.of([each for answered in served if (each := answered.seconds_per_token) is not None]),
        gap=Spread.of([gap for answered in served for gap in answered.gaps]),
        whole=Spread.of([answered.last - answered.sent for answered in served]),
        tokens_per_round=sum(answered.tokens for answered in served) / rounds if rounds else 0.0,
    )


def _ms(spread: Spread | None) -> float:
    return float("nan") if spread is None else 1e3 * spread.p50
