from __future__ import annotations

import numpy as np
import pytest

from headstart.analysis import theory
from headstart.analysis.plan_report import exhibits, to_json
from headstart.analysis.planner import Forecast, PassTimes, Plan, Profile, forecast

PLAIN = Profile("none", [[]] * 4, [[]] * 4, draft_base=0.0, draft_step=0.0, other=0.0)


def chain(alpha: float, length: int, draft_step: float, rounds: int = 40_000) -> Profile:
    rng = np.random.default_rng(5)
    accepted = np.minimum(rng.geometric(1 - alpha, rounds) - 1, length)
    levels = [list(range(1, length + 1))] * rounds
    return Profile("chain", levels, [list(range(count)) for count in accepted], 0.0, draft_step, 0.0)


def flat(rows: int) -> PassTimes:
    return PassTimes(0, {1: {1: 2.0, rows: 2.0}})


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_on_chains_and_flat_passes_it_is_theorem_3_8(gamma: int) -> None:
    alpha, c = 0.7, 0.1
    expected = theory.walltime_improvement(alpha, gamma, c)
    found = forecast(chain(alpha, 7, draft_step=2.0 * c), PLAIN, flat(64), 1, gamma)
    assert found.speedup == pytest.approx(expected, rel=0.01)
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)


def test_dear_rows_make_plain_decoding_best() -> None:
    passes = PassTimes(0, {1: {1: 1.0, 64: 64.0}})
    forecasts = [forecast(chain(0.5, 7, 0.0), PLAIN, passes, 1, nodes) for nodes in (0, 1, 3, 7)]
    assert Plan([passes], [PLAIN], forecasts).best(1).nodes == 0


def test_a_tree_is_cut_in_its_own_order() -> None:
    # Two rounds: nodes 0 and 2 accepted, then none; node 2 lies on the second level.
    tree = Profile("tree", [[1, 1, 2]] * 2, [[0, 2], []], 0.5, 0.25, 0.125)
    passes = PassTimes(0, {2: {1: 1.0, 4: 4.0}})
    assert [tree.tokens(nodes) for nodes in range(4)] == [1.0, 1.5, 1.5, 2.0]
    found = forecast(tree, PLAIN, passes, 2, 2)
    assert found.seconds == pytest.approx(3.0 + 2 * (0.5 + 0.25 + 0.125))
    assert found.speedup == pytest.approx(1.5 / found.seconds)


def test_the_report_says_what_was_measured_and_predicted() -> None:
    passes = PassTimes(32, {1: {1: 1.0, 64: 2.0}})
    profiles = [PLAIN, chain(0.8, 7, 0.01, rounds=100)]
    forecasts = [forecast(PLAIN, PLAIN, passes, 1, 0), *(forecast(profiles[1], PLAIN, passes, 1, n) for n in (1, 7))]
    plan = Plan([passes], profiles, forecasts, [(forecasts[0], 0.8)])
    result = to_json(plan, {"settings": {"seed": 0}})
    assert result["recommended"][0]["nodes"] == 7
    assert result["checked"][0]["error"] == pytest.approx(1.0 / 0.8 - 1)
    assert isinstance(forecasts[0], Forecast)
    titles = [item.title for item in exhibits(plan, {})]
    assert titles[:2] == ["Recommended", "Prediction and measurement"]
    assert "Target pass" in titles
