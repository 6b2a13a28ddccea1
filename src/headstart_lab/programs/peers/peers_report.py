"""What a sitting amounts to: tables, JSON and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from headstart_charts.bars import Bar, BarChart
from headstart_charts.page import Cell, Table
from headstart_charts.plots import Figure
from headstart_lab.bench.run import Run
from headstart_lab.bench.summary import Speed, speeds
from headstart_lab.commands.exhibits import show, write_report
from headstart_lab.programs.peers.sitting import Sitting
from headstart_lab.workbench import PLAIN

FORMAT = "headstart-peers/2"
PLAIN_GOAL, BEST_GOAL = 2.0, 4.0
"""Headstart over the fastest peer: plain decoding against plain decoding, best against best."""
_PLAIN_MODE = "plain"
"""What peers call the mode that does not speculate."""


@dataclass(frozen=True)
class Goal:
    """One ratio that is held against a goal."""

    what: str
    ours: str
    theirs: str
    ratio: float
    goal: float

    @property
    def reached(self) -> bool:
        return self.ratio >= self.goal


def report(sitting: Sitting, record: dict[str, Any], out: Path | None) -> None:
    """Tables on the terminal, JSON and HTML in ``out``."""
    by_name: dict[str, list[Run]] = {}
    for run in sitting.runs:
        by_name.setdefault(run.contender, []).append(run)
    plain = by_name[sitting.reference]
    figures = {name: speeds(mine, plain) for name, mine in by_name.items()}
    agreement = {name: same_tokens(mine, plain) for name, mine in by_name.items()}
    ranked = sorted(by_name, key=lambda name: rate(figures, name), reverse=True)
    reached = goals(figures)
    groups = list(figures[sitting.reference][0])
    shown: list[Table | Figure | BarChart] = [
        table(ranked, figures, agreement, sitting),
        goal_table(reached),
        Table(
            "Tokens per second in decoding, by task group",
            ("contender", *groups),
            tuple((name, *(figures[name][0][group].decoding.middle for group in groups)) for name in ranked),
            decimals=1,
        ),
        reading_table(ranked, by_name, groups),
        chart(ranked, figures),
        Table("Left out", ("what", "why"), tuple(sitting.left_out.items())),
    ]
    show(shown, record)
    if out is not None:
        result = {
            "format": FORMAT,
            **record,
            "reference": sitting.reference,
            "left_out": sitting.left_out,
            "goals": [{**asdict(goal), "reached": goal.reached} for goal in reached],
            "contenders": [
                {
                    "name": name,
                    "weights": sitting.weights[name],
                    "groups": {group: asdict(speed) for group, speed in figures[name][0].items()},
                    "mean": asdict(figures[name][1]),
                    "same_tokens": agreement[name],
                }
                for name in ranked
            ],
            "runs": [run_row(run) for run in sitting.runs],
        }
        write_report(out, "peers", result, "Headstart and its peers", shown, record)


Figures = dict[str, tuple[dict[str, Speed], Speed]]
"""Contender -> its speed by task group, and the mean over the groups."""


def rate(figures: Figures, name: str) -> float:
    """Tokens per second in decoding."""
    return figures[name][1].decoding.middle


def is_own(name: str) -> bool:
    return name.startswith("headstart ")


def goals(figures: Figures) -> list[Goal]:
    """For each of Headstart's precisions: plain against the fastest plain peer, best against the fastest of all."""
    peers = {name: rate(figures, name) for name in figures if not is_own(name)}
    plain_peers = {name: value for name, value in peers.items() if name.split(" ", 1)[1] == _PLAIN_MODE}
    found = []
    for precision in dict.fromkeys(name.split()[1] for name in figures if is_own(name)):
        ours = {name: rate(figures, name) for name in figures if name.startswith(f"headstart {precision} ")}
        plain = {name: value for name, value in ours.items() if name.split()[2] == PLAIN}
        for what, mine, theirs, goal in (
            ("plain", plain, plain_peers, PLAIN_GOAL),
            ("best", ours, peers, BEST_GOAL),
        ):
            if mine and theirs:
                our_name, their_name = max(mine, key=mine.__getitem__), max(theirs, key=theirs.__getitem__)
                ratio = mine[our_name] / theirs[their_name]
                found.append(Goal(f"{precision} {what}", our_name, their_name, ratio, goal))
    return found


def table(ranked: Sequence[str], figures: Figures, agreement: dict[str, float], sitting: Sitting) -> Table:
    best = max(rate(figures, name) for name in ranked if is_own(name))
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            rate(figures, name),
            figures[name][1].with_prefill.middle,
            figures[name][1].speedup.middle,
            rate(figures, name) / best,
            f"{agreement[name]:.0%}",
            sitting.weights[name],
        )
        for name in ranked
    ]
    return Table(
        "Headstart and its peers",
        ("contender", "tokens/s", "with prefill", "over plain", "over best", "same tokens", "weights"),
        tuple(rows),
        "Means over the task groups, medians over the repeats; greedy, one sequence at a time. over plain, over best: "
        f"tokens/s over {sitting.reference}'s and over Headstart's fastest. same tokens: how far, on average, a text "
        f"is {sitting.reference}'s; who holds other weights or rounds differently parts from it somewhere.",
        decimals=(0, 1, 1, 2, 2, 0, 0),
    )


def goal_table(reached: Sequence[Goal]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (goal.what, goal.ours, goal.theirs, goal.ratio, goal.goal, "yes" if goal.reached else "no") for goal in reached
    ]
    return Table("Against the fastest peer", ("", "Headstart", "fastest peer", "ratio", "goal", "reached"), tuple(rows))


def reading_table(ranked: Sequence[str], by_name: dict[str, list[Run]], groups: Sequence[str]) -> Table:
    def reading(name: str, group: str) -> float:
        """Prompt tokens a second, the median over the repeats."""
        runs = [run for run in by_name[name] if run.group == group]
        repeats = [[run.stats for run in runs if run.repeat == repeat] for repeat in {run.repeat for run in runs}]
        return median(
            sum(stats.prompt_tokens for stats in own) / sum(stats.prefill_seconds for stats in own) for own in repeats
        )

    timed = [name for name in ranked if all(run.stats.prefill_seconds > 0 for run in by_name[name])]
    return Table(
        "Tokens per second in reading prompts, by task group",
        ("contender", *groups),
        tuple((name, *(reading(name, group) for group in groups)) for name in timed),
        decimals=0,
    )


def chart(ranked: Sequence[str], figures: Figures) -> BarChart:
    spreads = {name: figures[name][1].decoding for name in ranked}
    bars = tuple(Bar(name, spread.middle, spread.low, spread.high) for name, spread in spreads.items())
    return BarChart("Decoding", "tokens per second, mean of the task groups", bars, decimals=1)


def same_tokens(runs: Sequence[Run], plain: Sequence[Run]) -> float:
    """Mean part of an answer before its first difference from the reference's."""
    expected = {(run.prompt, run.repeat): run.tokens for run in plain}
    parts = []
    for run in runs:
        reference = expected[run.prompt, run.repeat]
        shared = 0
        while shared < min(len(reference), len(run.tokens)) and reference[shared] == run.tokens[shared]:
            shared += 1
        parts.append(shared / len(reference))
    return sum(parts) / len(parts)


def run_row(run: Run) -> dict[str, Any]:
    return {
        "contender": run.contender,
        "prompt": run.prompt,
        "group": run.group,
        "repeat": run.repeat,
        "prompt_tokens": run.stats.prompt_tokens,
        "tokens": run.stats.tokens,
        "seconds": run.stats.seconds,
        "prefill_seconds": run.stats.prefill_seconds,
    }
