from __future__ import annotations

import numpy as np
import pytest

from headstart.analysis import theory
from headstart.analysis.plan_report import exhibits, to_json
from headstart.analysis.planner import Forecast, PassTimes, Plan, Profile, _line, _Watching, forecast
from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, RoundOutcome, TargetSignals

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


def test_what_follows_from_a_tree_is_paid_for_by_the_node() -> None:
    tree = Profile("tree", [[1, 2]], [[0]], 0.0, 0.0, 0.5, other_step=0.25)
    found = forecast(tree, PLAIN, PassTimes(0, {2: {1: 1.0, 3: 1.0}}), 2, 2)
    assert found.seconds == pytest.approx(1.0 + 2 * (0.5 + 2 * 0.25))


def test_lines_go_through_the_medians_of_small_and_large_sizes() -> None:
    timed = [(1, 1.5), (1, 9.0), (1, 1.5), (5, 3.5), (5, 3.5), (5, 0.0)]
    base, step = _line(timed)
    assert (base, step) == pytest.approx((1.0, 0.5))
    assert _line([(0, 2.0), (0, 2.0)]) == (2.0, 0.0)
    assert _line([]) == (0.0, 0.0)


class Ticking:
    """A clock of which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Chains:
    """Guesses chains as long as they may be."""

    needs = TargetSignals()

    def begin(self, sequence) -> None: ...

    def observe(self, outcomes) -> None: ...

    def end(self, sequence_id) -> None: ...

    def propose(self, sequences, budgets) -> list[DraftTree]:
        return [DraftTree.chain(range(budget.depth)) for budget in budgets]


def test_a_profile_tells_draft_from_bookkeeping_and_pauses_between_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.analysis.planner.time.perf_counter", Ticking())
    watching = _Watching(Chains())
    for _ in range(2):
        for _ in range(5):
            (tree,) = watching.propose([None], [DraftBudget(3, 3)])
            rows = np.arange(1 + len(tree), dtype=np.int32)
            watching.observe([RoundOutcome(None, 1, rows, tree, (), (7,), pass_seconds=0.25)])
        watching.pause()
    assert [seconds for _, seconds in watching.timed] == [1.0] * 10
    # A second from draft to observation, less the pass, and one from there to the next draft; none across the pause.
    assert [rest for _, rest in watching.others] == [1.75] * 8
    assert {levels for levels, _ in watching.timed} == {1, 3}


def test_the_report_says_what_was_measured_and_predicted() -> None:
    passes = PassTimes(32, {1: {1: 1.0, 64: 2.0}})
    profiles = [PLAIN, chain(0.8, 7, 0.01, rounds=100)]
    forecasts = [forecast(PLAIN, PLAIN, passes, 1, 0), *(forecast(profiles[1], PLAIN, passes, 1, n) for n in (1, 7))]
    plan = Plan([passes], profiles, forecasts, [(forecasts[0], 0.8), (forecasts[2], 1.6)])
    result = to_json(plan, {"settings": {"seed": 0}})
    assert result["recommended"][0]["nodes"] == 7
    assert result["checked"][0]["error"] == pytest.approx(1.0 / 0.8 - 1)
    assert result["checked"][0]["speedup_error"] == pytest.approx(0.0)
    assert result["checked"][1]["speedup_error"] == pytest.approx(forecasts[2].speedup * 0.8 / 1.6 - 1)
    assert isinstance(forecasts[0], Forecast)
    titles = [item.title for item in exhibits(plan, {})]
    assert titles[:2] == ["Recommended", "Prediction and measurement"]
    assert "Target pass" in titles
