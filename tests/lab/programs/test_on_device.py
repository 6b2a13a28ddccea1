"""The benchmark of accelerators runs anywhere, in small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "headstart_lab.programs.on_device"


@pytest.mark.thorough
def test_a_shape_and_a_model_on_the_processor(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    given = ["--device", "cpu", "--minutes", "2", "--shapes", "tiny", "--context", "40", "--max-tokens", "8"]
    given += ["--model", str(tiny_model_dir), "--drafters", "ngram,eagle3,auto", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", SCRIPT, *given],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["rates"].keys() == {"copy_bytes_per_second", "bf16_operations_per_second"}
    model, shape = record["results"]
    # No head came with this model.
    assert "eagle3 is left out" in done.stdout
    assert model["drafters"].keys() == {"none", "ngram", "auto"}
    assert shape["shape"] == "tiny"
    assert shape["over_one_row"]["1"] == 1
    assert shape["one_row_over_reads"] > 0
    assert shape["drafters"]["synthetic:rates=[0.8,0.8,0.8,0.8]"]["tokens_per_round"] > 1
    for each in (model, shape):
        assert each["drafters"]["none"]["over_plain"] == 1
        parted = [place for drafter in each["drafters"].values() for place in drafter["differences"]]
        assert all(place["tie"] for place in parted)
