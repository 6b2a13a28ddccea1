"""What all replicas say of themselves, as one answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def merged_metrics(answers: Sequence[dict[str, Any]]) -> bytes:
    """Prometheus' text of each replica in one text: each series has a label ``replica`` more, each name is declared
    once, and its series stand together, as the format asks.

    Args:
        answers: ``Replica.whole`` of each replica.
    """
    declared: dict[str, list[str]] = {}
    for answer in sorted(answers, key=lambda each: str(each["replica"])):
        label = f'replica="{answer["replica"]}"'
        series: list[str] = []
        for line in answer["body"].decode().splitlines():
            if line.startswith("#"):
                series = declared.setdefault(line, [])
            elif line:
                series.append(_labelled(line, label))
    lines = [each for head, series in declared.items() for each in (head, *series)]
    return ("\n".join(lines) + "\n").encode()


def _labelled(line: str, label: str) -> str:
    """One series' line; its labels may hold any character, so the first brace after the name is what is looked for."""
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, rest = line.partition(" ")
    return f"{name}{{{label}}} {rest}"


def merged_stats(answers: Sequence[dict[str, Any]]) -> bytes:
    """``/stats`` of each replica by its name."""
    each = {answer["replica"]: _stats(answer) for answer in sorted(answers, key=lambda each: str(each["replica"]))}
    return json.dumps({"replicas": each}).encode()


def _stats(answer: dict[str, Any]) -> dict[str, Any]:
    said = json.loads(answer["body"])
    return {"node": answer["node"], "process": answer["process"], **said}
