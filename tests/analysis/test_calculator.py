from __future__ import annotations

import pytest

from headstart.analysis import theory
from headstart.analysis.calculator import MAX_GAMMA, curves
from headstart.analysis.exhibits import PAPER_COSTS, PAPER_GAMMAS


def test_the_readers_lines_pass_through_the_readers_point() -> None:
    seen = curves(alpha=0.7, gamma=4, c=0.07, c_hat=0.03)
    at = seen["alphas"].index(0.7)
    for name in ("tokens", "speedup", "operations", "best_gamma"):
        (own,) = [line for line in seen[name] if line["own"]]
        assert own["value"] == (0.07 if name == "best_gamma" else 4)
        assert own["y"][at] == pytest.approx(seen["point"][name])
    assert seen["point"]["tokens"] == pytest.approx((1 - 0.7**5) / 0.3)
    assert seen["point"]["speedup"] == pytest.approx((1 - 0.7**5) / 0.3 / (1 + 4 * 0.07))
    assert seen["point"]["operations"] == pytest.approx((4 * 0.03 + 5) / ((1 - 0.7**5) / 0.3))


def test_the_papers_lines_are_always_there() -> None:
    seen = curves(alpha=0.5, gamma=5, c=0.05, c_hat=0.0)
    assert [line["value"] for line in seen["tokens"]] == list(PAPER_GAMMAS)
    assert [line["value"] for line in seen["best_gamma"]] == list(PAPER_COSTS)
    assert all(len(line["y"]) == len(seen["alphas"]) for line in seen["speedup"])


@pytest.mark.parametrize(("alpha", "c"), [(0.8, 0.0), (0.95, 0.01), (0.3, 0.5), (0.0, 0.1), (1.0, 0.2)])
def test_the_best_draft_length_is_the_best(alpha: float, c: float) -> None:
    point = curves(alpha, 3, c, 0.0)["point"]
    speeds = [theory.walltime_improvement(alpha, gamma, c) for gamma in range(MAX_GAMMA + 1)]
    assert point["best_speedup"] == pytest.approx(max(speeds))
    assert point["can_improve"] == (alpha > c)
