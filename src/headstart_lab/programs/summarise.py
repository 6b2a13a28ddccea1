"""Keeps a measurement without its single runs, as ``benchmarks/results`` holds it:
python -m headstart_lab.programs.summarise results/bench.json benchmarks/results/2026-11-27-bench-amx.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DETAILS = ("runs", "forecasts")
"""Lists with an entry for each run, which no page reads."""


DIGITS = 6
"""Of every figure: more than any page shows, and more than a repeat would give again."""


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What pages read of a report: all but its single runs, figures rounded."""
    return {name: _rounded(value) for name, value in report.items() if name not in DETAILS}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    short = summary(json.loads(source.read_text(encoding="utf-8")))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in short.items())
    target.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
