"""A file beside llama.cpp."""

from __future__ import annotations

import pytest

from headstart_lab.programs.native.bench_file import pace, verifying


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
