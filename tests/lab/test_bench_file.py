"""A file beside llama.cpp."""

from __future__ import annotations

import pytest

from headstart_lab.programs.native.bench_file import pace


def test_the_pace_is_that_of_the_best_number_of_guesses() -> None:
    assert pace([1.0, 1.1, 1.3], [0.8, 0.5]) == pytest.approx(2.3 / 1.3)
    assert pace([1.0, 1.1, 1.5], [0.8, 0.5]) == pytest.approx(1.8 / 1.1)
    assert pace([1.0, 2.0, 3.0], [0.8, 0.5]) == 1.0
