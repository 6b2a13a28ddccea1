"""Records stay small: results are summaries, pages short, words few."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = sorted((ROOT / "benchmarks" / "results").iterdir())


def test_results_are_small_and_hold_no_single_runs() -> None:
    assert sum(path.stat().st_size for path in RESULTS) <= 1_500_000
    for path in RESULTS:
        assert not {"runs", "forecasts"} & set(json.loads(path.read_text(encoding="utf-8")))
