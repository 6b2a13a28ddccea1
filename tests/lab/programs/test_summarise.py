"""Summaries of measurements hold all but their single runs, in figures that a page can show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = "headstart_lab.programs.summarise"


def test_single_runs_are_left_out_and_figures_rounded(tmp_path: Path) -> None:
    kept = {"format": "headstart-bench/1", "contenders": [{"name": "plain", "mean": 0.1234567890123456, "runs": 3}]}
    (tmp_path / "bench.json").write_text(json.dumps({**kept, "runs": [{"tokens": 3}], "forecasts": [1]}))
    call = [sys.executable, "-m", SCRIPT, str(tmp_path / "bench.json"), str(tmp_path / "short.json")]
    subprocess.run(call, check=True)
    assert json.loads((tmp_path / "short.json").read_text(encoding="utf-8")) == {
        "format": "headstart-bench/1",
        "contenders": [{"name": "plain", "mean": 0.123457, "runs": 3}],
    }
