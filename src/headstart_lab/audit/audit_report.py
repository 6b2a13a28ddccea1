"""An audit as JSON and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headstart_charts.page import Cell, Table
from headstart_lab.audit.joint_law import LawFindings
from headstart_lab.audit.run import Audit
from headstart_lab.audit.texts import TextFindings

FORMAT = "headstart-audit/1"


def to_json(audit: Audit, record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values; the verdict first."""
    return {
        "format": FORMAT,
        "passed": audit.passed,
        "verdict": audit.verdict,
        "faults": audit.faults,
        "weakness": audit.weakness,
        **record,
        "numerics": asdict(audit.numerics),
        "rules": {**asdict(audit.rules), "passed": audit.rules.passed},
        "texts": [_text_row(text) for text in audit.texts],
        "laws": [_law_row(audit, law) for law in audit.laws],
        "least_p_value": audit.least_p_value,
        "idle": audit.idle,
        "skipped": audit.skipped,
    }


def exhibits(audit: Audit) -> list[Table]:
    """What a reader wants to see; the verdict stands above it."""
    shown = []
    if audit.faults:
        shown.append(Table("Faults", ("",), tuple((fault,) for fault in audit.faults)))
    shown += [text_table(audit), law_table(audit), rule_table(audit)]
    if any(text.differences for text in audit.texts):
        shown.append(difference_table(audit))
    if audit.skipped:
        shown.append(Table("Left out", ("what", "why"), tuple(audit.skipped.items())))
    return shown


def text_table(audit: Audit) -> Table:
    """Texts and rows against plain decoding's."""
    rows: list[tuple[Cell, ...]] = [
        (
            text.drafter,
            text.tokens,
            f"{text.accepted} of {text.drafted}",
            len(text.greedy_differences),
            len(text.coupled_differences),
            text.ties(audit.numerics),
            f"{text.equal_rows} of {text.rows}",
            f"{text.largest_row_difference:.1e}",
        )
        for text in audit.texts
    ]
    promise = (
        "This backend computes a row to the same bits in every pass, so nothing may differ."
        if audit.numerics.exact
        else "This backend rounds differently in passes of different shape: a text may part from plain decoding's "
        f"where the two best tokens are nearer than {audit.numerics.tie:.0e} of the logits' range (a float tie)."
    )
    return Table(
        "Texts and logits against plain decoding",
        (
            "drafter",
            "tokens",
            "accepted",
            "greedy differing",
            "coupled differing",
            "float ties",
            "bit-identical rows",
            "largest difference",
        ),
        tuple(rows),
        "Plain decoding takes the prompts one by one, each drafter takes them together. coupled: drawn at temperature "
        "1, drafter and target sharing their noise. largest difference: of a logit, as a part of its row's range. "
        + promise,
    )


def law_table(audit: Audit) -> Table:
    """The joint law of short sampled texts."""
    rows: list[tuple[Cell, ...]] = [
        (
            f"{law.drafter}, {law.rule}",
            "draws" if law.drawn else "point masses",
            law.goodness.samples,
            f"{law.accepted} of {law.drafted}",
            law.goodness.cells,
            law.goodness.statistic,
            f"{law.goodness.p_value:.3g}",
            law.goodness.total_variation,
            "nothing" if (distance := audit.detectable(law)) is None else f"{distance:.2f}",
        )
        for law in audit.laws
    ]
    return Table(
        "Sampled texts against their law (G-test)",
        ("drafter, rule", "guesses", "samples", "accepted", "cells", "G", "p", "total variation", "would find"),
        tuple(rows),
        "Texts of a few tokens over a dozen allowed ones at temperature 1; their joint law by plain steps of the "
        f"target. p below {audit.least_p_value:.1e} fails. Total variation is that of a finite sample, never 0. would "
        "find: a law that is so far off (total variation over the cells) fails nine times in ten; more --samples find "
        "less.",
        decimals=(0, 0, 0, 0, 0, 1, 0, 3, 0),
    )


def rule_table(audit: Audit) -> Table:
    """The enumeration of the rules."""
    rules = audit.rules
    rows: tuple[tuple[Cell, ...], ...] = (
        ("cases and rules enumerated", rules.enumerated),
        ("wrong", len(rules.broken)),
        ("largest error of a probability", f"{rules.largest_error:.1e}"),
        ("error of a lossy rule, as a control", f"{rules.control_error:.2g}"),
    )
    return Table("Verification rules, by enumeration", ("", ""), rows)


def difference_table(audit: Audit) -> Table:
    """Where texts part from plain decoding's."""
    rows: list[tuple[Cell, ...]] = [
        (
            text.drafter,
            kind,
            prompt + 1,
            place.index,
            f"{place.plain} / {place.other}",
            f"{place.gap:.1e}",
            "yes" if place.is_tie(audit.numerics) else "no",
        )
        for text in audit.texts
        for kind, places in (("greedy", text.greedy_differences), ("coupled", text.coupled_differences))
        for prompt, place in places
    ]
    columns = ("drafter", "text", "prompt", "at token", "plain / this", "top-2 gap", "float tie")
    return Table("Differences", columns, tuple(rows))


def _law_row(audit: Audit, law: LawFindings) -> dict[str, Any]:
    goodness = asdict(law.goodness)
    # JSON has no word for infinity, which the statistic is where the impossible was seen.
    goodness = {name: value if math.isfinite(value) else None for name, value in goodness.items()}
    return {**asdict(law), "goodness": goodness, "detectable_total_variation": audit.detectable(law)}


def _text_row(text: TextFindings) -> dict[str, Any]:
    def places(kind: str) -> list[dict[str, Any]]:
        return [{"prompt": prompt, **asdict(place)} for prompt, place in getattr(text, f"{kind}_differences")]

    return {**asdict(text), "greedy_differences": places("greedy"), "coupled_differences": places("coupled")}
