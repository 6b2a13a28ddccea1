"""What a training came to, as a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headstart_charts.page import Table, to_html
from headstart_charts.plots import Curve, Figure
from headstart_train.checkpoints import Progress

REPORT_FILE, LOG_FILE = "report.html", "training.json"


def write_report(out: Path, record: Mapping[str, Any], progress: Progress) -> None:
    """``report.html`` with the curves of loss and acceptance, ``training.json`` with their numbers."""
    out.mkdir(parents=True, exist_ok=True)
    numbers = {**record, **asdict(progress)}
    (out / LOG_FILE).write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    page = to_html(f"Training of an {record['head']} head for {record['target']}", _exhibits(record, progress))
    (out / REPORT_FILE).write_text(page, encoding="utf-8")


def _exhibits(record: Mapping[str, Any], progress: Progress) -> list[Table | Figure]:
    exhibits: list[Table | Figure] = [_facts(record, progress)]
    if progress.losses:
        at, losses = [step for step, _ in progress.losses], [loss for _, loss in progress.losses]
        exhibits.append(
            Figure(
                "Loss",
                "optimiser step",
                "loss",
                (Curve("loss", at, losses),),
                note="Mean of the steps since the last point.",
            )
        )
    if progress.held_out:
        steps = [step for step, _, _ in progress.held_out]
        lengths = [length for _, length, _ in progress.held_out]
        exhibits.append(
            Figure(
                "Acceptance on held-out text",
                "optimiser step",
                "tokens a round",
                (Curve("accepted length", steps, lengths),),
                note="A chain of best guesses, the correction or bonus included, had the text been decoded as it was.",
            )
        )
        depths = len(progress.held_out[-1][2])
        curves = tuple(
            Curve(f"guess {depth + 1}", steps, [accuracy[depth] for _, _, accuracy in progress.held_out])
            for depth in range(depths)
        )
        exhibits.append(
            Figure(
                "Accuracy by depth",
                "optimiser step",
                "share",
                curves,
                y_max=1.0,
                note="Guesses that are the target's favourite, with the true text above them.",
            )
        )
    return exhibits


def _facts(record: Mapping[str, Any], progress: Progress) -> Table:
    rows = (
        ("target", str(record["target"])),
        ("computed by", str(record["target_precision"])),
        ("answer tokens of text", int(record["text"]["answer_tokens"])),
        ("share of them that the head can say", float(record["coverage"])),
        ("optimiser steps", progress.step),
        ("minutes", progress.seconds / 60),
        ("best accepted length on held-out text", progress.best if progress.held_out else None),
    )
    return Table("Facts", ("what", "value"), rows, decimals=3)
