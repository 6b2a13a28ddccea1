"""The G-test, against scipy's and against samples of known laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headstart_lab.audit.goodness import g_test

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


@pytest.mark.parametrize(("samples", "least_p_value"), [(100, 1e-2), (1000, 1e-3), (4000, 1e-4)])
def test_what_it_would_find_is_scipys_noncentral_law(samples, least_p_value):
    result = g_test(drawn(samples, 4), LAW)
    distance = result.detectable(least_p_value)
    freedom = result.cells - 1
    critical = stats.chi2.isf(least_p_value, freedom)
    assert stats.ncx2.sf(critical, freedom, 4 * samples * distance**2) == pytest.approx(0.9)


@pytest.mark.parametrize("samples", [300, 3000])
def test_laws_that_are_just_so_far_off_are_found_nine_times_in_ten(samples):
    """The hardest ones to find: half of the mass is a little more, the other half a little less."""
    law = dict.fromkeys("abcdef", 1 / 6)
    distance = g_test(drawn(samples, 0, law), law).detectable(1e-3)
    wrong = {name: (1 + 2 * distance * (-1) ** place) / 6 for place, name in enumerate(law)}
    found = [g_test(drawn(samples, seed, wrong), law).p_value < 1e-3 for seed in range(1, 301)]
    assert 0.85 < np.mean(found) < 0.95


def test_too_few_samples_find_nothing():
    assert g_test(["a"], {"a": 0.5, "b": 0.5}).detectable(1e-3) is None
    # Ten of ten in one of two cells are not yet so rare.
    assert g_test(["a"] * 10, {"a": 0.5, "b": 0.5}).detectable(1e-4) is None
    assert g_test(["a"] * 10, {"a": 0.5, "b": 0.5}).p_value > 1e-4
    assert g_test(["a"] * 100, {"a": 1.0}).detectable(0.5) is None


def test_more_samples_find_less():
    found = [g_test(drawn(count, 5), LAW).detectable(1e-3) for count in (100, 400, 1600, 6400)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 4
