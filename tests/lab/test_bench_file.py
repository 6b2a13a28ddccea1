"""A file beside llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from native_here import needs_native

from headstart_lab.programs.native.bench_file import main, pace, verifying
from headstart_lab.programs.native.random_gguf import SHAPES


def test_the_pace_is_that_of_the_best_number_of_guesses() -> None:
    assert pace([1.0, 1.1, 1.3], [0.8, 0.5]) == pytest.approx(2.3 / 1.3)
    assert pace([1.0, 1.1, 1.5], [0.8, 0.5]) == pytest.approx(1.8 / 1.1)
    assert pace([1.0, 2.0, 3.0], [0.8, 0.5]) == 1.0


def test_as_many_guesses_are_asked_for_as_the_worker_has_passes_for() -> None:
    modes = ["plain", "2 rows", "3 rows"]
    assert verifying(2, modes) == modes[1:]
    with pytest.raises(SystemExit, match=r"has 3 numbers, and llama\.cpp is timed for 2 at most"):
        verifying(3, modes)
    assert len(verifying(3)) == 3  # without a peer


@needs_native
def test_a_file_is_measured_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a matrix unit: its only sitting must not end by a slip."""
    tiny = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "mlp": 256, "layers": 2, "vocab": 512, "tied": 1}
    monkeypatch.setitem(SHAPES, "llama-3.2-1b", tiny)
    sizes = ["--rows", "2", "8", "--context", "40", "--prompt", "64", "--tokens", "4", "--repeats", "2"]
    where = ["--folder", str(tmp_path), "--out", str(tmp_path / "out.json")]
    main(["--peer", "none", "--precision", "auto", "bf16", "--products", *sizes, *where])
    record = json.loads((tmp_path / "out.json").read_text())
    assert [case["precision"] for case in record["cases"]] == ["auto", "bf16"]
    for case in record["cases"]:
        assert {"2 rows / 1 row", "8 rows / 1 row", "prompt / products", "kept / file"} <= set(case)
        assert len(case["prompt_ms"]) == 2
