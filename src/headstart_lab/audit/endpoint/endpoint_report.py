"""An audit of a server as JSON and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headstart_charts.page import Cell, Table
from headstart_lab.audit.endpoint.findings import EndpointAudit, Finding

FORMAT = "headstart-audit-endpoint/1"


def to_json(audit: EndpointAudit, record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain values; the verdict first."""
    return {
        "format": FORMAT,
        "passed": audit.passed,
        "verdict": audit.verdict,
        "faults": audit.faults,
        "weakness": audit.weakness,
        "ended": audit.ended or None,
        "model": audit.model,
        **record,
        "requests": audit.requests,
        "least_p_value": audit.least_p_value,
        "findings": [_row(audit, finding) for finding in audit.findings],
    }


def exhibits(audit: EndpointAudit) -> list[Table]:
    """What a reader wants to see; the verdict stands above it."""
    shown = []
    if audit.faults:
        shown.append(Table("Faults", ("",), tuple((fault,) for fault in audit.faults)))
    shown += [check_table(audit), law_table(audit)]
    if any(finding.details for finding in audit.findings):
        shown.append(difference_table(audit))
    return shown


def check_table(audit: EndpointAudit) -> Table:
    """All checks but those of laws."""
    rows: list[tuple[Cell, ...]] = [
        (
            finding.check,
            f"{finding.trials} {finding.unit}" if finding.trials else None,
            audit.result(finding).value,
            finding.said,
            None if (share := finding.share_found) is None else f"{100 * share:.2g} %",
        )
        for finding in audit.findings
        if finding.law is None
    ]
    return Table(
        "What must be equal, or have a form",
        ("check", "of", "result", "found", "would find"),
        tuple(rows),
        "would find: a fault that shows in this share of such answers is seen nine times in ten. pass but for "
        "rounding: texts part only where the server's own probabilities of the two tokens are as good as equal, and "
        "what shares their batch decides.",
    )


def law_table(audit: EndpointAudit) -> Table:
    """The tests of laws."""
    rows: list[tuple[Cell, ...]] = [
        (
            finding.check,
            f"{finding.trials} {finding.unit}",
            audit.result(finding).value,
            finding.law.cells,
            finding.law.statistic,
            f"{finding.law.p_value:.3g}",
            finding.law.total_variation,
            "nothing" if (distance := audit.detectable(finding)) is None else f"{distance:.3f}",
        )
        for finding in audit.laws
        if finding.law is not None
    ]
    return Table(
        "Draws against their laws",
        ("check", "of", "result", "cells", "G or χ²", "p", "total variation", "would find"),
        tuple(rows),
        f"p below {audit.least_p_value:.1e} fails. draws: each token of longer texts against the log-probabilities of "
        "its own row, by rank; short texts: without log-probabilities, against the joint law that other answers tell. "
        "Total variation is that of a finite sample, never 0. would find: a law that is so far off over the cells "
        "fails nine times in ten; more --samples find less.",
        decimals=(0, 0, 0, 0, 1, 0, 3, 0),
    )


def difference_table(audit: EndpointAudit) -> Table:
    """Where texts part."""
    rows: list[tuple[Cell, ...]] = [
        (
            finding.check,
            detail["prompt"],
            detail["character"],
            repr(detail["expected"]),
            repr(detail["heard"]),
            None if detail["gap"] is None else f"{detail['gap']:.3g}",
            {True: "yes", False: "no", None: "not known"}[detail["tie"]],
        )
        for finding in audit.findings
        for detail in finding.details
    ]
    columns = ("check", "prompt", "at character", "expected", "heard", "nats apart", "tie")
    return Table("Differences", columns, tuple(rows))


def _row(audit: EndpointAudit, finding: Finding) -> dict[str, Any]:
    told: dict[str, Any] = {
        "check": finding.check,
        "result": audit.result(finding).value,
        "trials": finding.trials,
        "unit": finding.unit,
        "said": audit.words(finding),
        "share_found": finding.share_found,
        "differences": list(finding.details),
    }
    if finding.law is not None:
        # JSON has no word for infinity, which the statistic is where the impossible was seen.
        law = {name: value if math.isfinite(value) else None for name, value in asdict(finding.law).items()}
        told |= {"law": law, "detectable_total_variation": audit.detectable(finding)}
    return told
