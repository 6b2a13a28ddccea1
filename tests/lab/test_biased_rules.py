from __future__ import annotations

import numpy as np
import pytest

from headstart.common.enumerations import VerifyRule
from headstart.verification import algebra
from headstart_lab.audit.cases import constant_model, draft_chain
from headstart_lab.audit.oracle import output_law
from headstart_lab.theory.biased_rules import Rule, chance_distance, law, simulate
from headstart_lab.theory.formulas import FloatArray, divergence

PAIRS = [
    ([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]),
    ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]),
    ([0.0, 0.6, 0.4], [0.5, 0.0, 0.5]),
]
BIASED = [Rule.RESAMPLE_TARGET, Rule.SHARED_NOISE]


def arrays(pair: tuple[list[float], list[float]]) -> tuple[FloatArray, FloatArray]:
    return np.array(pair[0]), np.array(pair[1])


def said_by_the_product(p: FloatArray, q: FloatArray) -> FloatArray:
    """The law of one token under the verification that ships, by enumeration."""
    target, draft = constant_model(*p.tolist()), constant_model(*q.tolist())
    probs = output_law(target, draft_chain(draft, 1), 1, rule=VerifyRule.REJECTION).probs
    return np.array([probs.get((token,), 0.0) for token in range(len(p))])


@pytest.mark.parametrize("pair", PAIRS)
def test_the_exact_rule_is_the_one_that_ships(pair: tuple[list[float], list[float]]) -> None:
    p, q = arrays(pair)
    assert law(Rule.EXACT, p, q) == pytest.approx(p, abs=1e-12)
    assert said_by_the_product(p, q) == pytest.approx(law(Rule.EXACT, p, q), abs=1e-12)


@pytest.mark.parametrize("pair", PAIRS)
def test_resampling_the_target_is_the_shipped_rule_without_its_residual(
    pair: tuple[list[float], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = arrays(pair)
    monkeypatch.setattr(algebra, "residual", lambda target, draft: target)
    assert said_by_the_product(p, q) == pytest.approx(law(Rule.RESAMPLE_TARGET, p, q), abs=1e-12)


@pytest.mark.parametrize("pair", PAIRS)
def test_sharing_noise_is_one_uniform_for_draw_and_verdict(pair: tuple[list[float], list[float]]) -> None:
    p, q = arrays(pair)
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    expected = np.zeros(len(p))
    rejected = 0
    for uniform in uniforms.tolist():
        token = int(np.searchsorted(np.cumsum(q), uniform, side="right"))
        if algebra.accepts(uniform, p[token], q[token]):
            expected[token] += 1
        else:
            rejected += 1
    left = np.maximum(p - q, 0)
    expected += rejected * left / left.sum()
    assert law(Rule.SHARED_NOISE, p, q) == pytest.approx(expected / len(uniforms), abs=1e-3)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", Rule)
def test_histograms_go_to_the_rules_own_law(rule: Rule, pair: tuple[list[float], list[float]]) -> None:
    p, q = arrays(pair)
    seen = simulate(rule, p, q, [100, 200_000], seed=1)
    assert seen.histograms.sum(axis=1) == pytest.approx([1, 1])
    own = law(rule, p, q)
    assert float(divergence(seen.histograms[-1], own)) < 5 * chance_distance(own, 200_000)
    assert seen.distances[-1] == pytest.approx(float(divergence(seen.histograms[-1], p)))


@pytest.mark.parametrize("pair", PAIRS)
def test_the_exact_rules_distance_falls_and_a_biased_ones_stays(pair: tuple[list[float], list[float]]) -> None:
    p, q = arrays(pair)
    checkpoints = [50, 5_000, 500_000]
    exact = simulate(Rule.EXACT, p, q, checkpoints, seed=2).distances
    assert exact[0] > exact[1] > exact[2]
    assert exact[2] < 5 * chance_distance(p, checkpoints[-1])
    for rule in BIASED:
        biased = simulate(rule, p, q, checkpoints, seed=2).distances
        assert biased[2] == pytest.approx(float(divergence(law(rule, p, q), p)), abs=5e-3)
        assert biased[2] > 10 * exact[2]


@pytest.mark.parametrize("rule", Rule)
def test_a_perfect_draft_hides_every_bias(rule: Rule) -> None:
    p = np.array([0.5, 0.3, 0.2])
    assert law(rule, p, p) == pytest.approx(p)
