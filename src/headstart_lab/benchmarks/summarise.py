"""Keeps a measurement without its single runs, as ``benchmarks/results`` holds it:
python -m headstart_lab.benchmarks.summarise results/bench.json benchmarks/results/2026-11-27-bench-amx.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DETAILS = ("runs", "forecasts")
"""Lists with an entry for each run, which no page reads."""


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What pages read of a report: all but its single runs."""
    return {name: value for name, value in report.items() if name not in DETAILS}


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    short = summary(json.loads(source.read_text(encoding="utf-8")))
    target.write_text(json.dumps(short, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
