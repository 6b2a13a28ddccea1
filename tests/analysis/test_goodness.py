"""The G-test, against scipy's and against samples of known laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headstart.analysis.audit.goodness import g_test

LAW = {name: probability for name, probability in zip("abcdef", (0.3, 0.25, 0.2, 0.15, 0.08, 0.02), strict=True)}


def drawn(count: int, seed: int, law=LAW) -> list[str]:
    return list(np.random.default_rng(seed).choice(list(law), size=count, p=list(law.values())))


def test_it_is_scipys():
    samples = drawn(500, 1)
    result = g_test(samples, LAW)
    observed = [samples.count(name) for name in LAW]
    expected = [500 * probability for probability in LAW.values()]
    reference = stats.power_divergence(observed, expected, lambda_="log-likelihood")
    assert result.statistic == pytest.approx(reference.statistic)
    assert result.p_value == pytest.approx(reference.pvalue)
    assert (result.samples, result.cells) == (500, 6)


def test_rare_cells_are_taken_together():
    result = g_test(drawn(100, 2), LAW)
    assert result.cells == 5  # "f" is expected twice
    assert g_test(drawn(20, 2), LAW).cells < 5


def test_p_values_of_true_samples_are_spread_evenly():
    values = [g_test(drawn(400, seed), LAW).p_value for seed in range(200)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_another_law_is_found():
    wrong = dict(LAW, a=0.25, b=0.30)
    assert g_test(drawn(3000, 3, wrong), LAW).p_value < 1e-6


def test_what_cannot_happen_is_found_at_once():
    assert g_test(["a", "z"], {"a": 1.0}).p_value == 0
    assert g_test(["a", "b"], {"a": 1.0, "b": 0.0}).p_value == 0


def test_one_cell_says_nothing():
    assert g_test(["a"] * 9, {"a": 1.0}).p_value == 1
    assert g_test(["a", "b"], {"a": 0.5, "b": 0.5}).p_value == 1


def test_total_variation():
    assert g_test(["a", "a", "b", "b"], {"a": 0.25, "b": 0.75}).total_variation == pytest.approx(0.25)
