from __future__ import annotations

from pathlib import Path

import pytest
from assistant_models import first_tree, write_target
from tiny_checkpoint import write_tiny_model

from headstart.errors import CheckpointError, ConfigError
from headstart.loading.lending import draft_context
from headstart.loading.model import load_model
from headstart.passes.runner import ModelRunner
from headstart_lab.plan.profiles import Profile, RoundSeconds
from headstart_lab.plan.published_rates import PUBLISHED, chance_of
from headstart_lab.plan.what_if import counted_rates, rates_of, what_if
from headstart_lab.stand_ins import stand_in

PLAIN = Profile("none", [], [], {1: RoundSeconds(0.0, 0.0, 0.0, typical=({0: 0.0}, {0: 0.020}, {0: 0.002}))})


def drafting(draft: float, row: float) -> Profile:
    """Chains of two and six guesses were timed, which take so long for each level and each row behind the first."""
    lengths = (1, 2, 6)
    typical = [{each: base + step * each for each in lengths} for base, step in ((0.001, draft), (0.020, row))]
    return Profile("stand-in", [], [], {1: RoundSeconds(0.0, 0.0, 0.0, typical=(*typical, {1: 0.002}))})


def test_rounds_cost_what_was_measured_and_yield_what_was_told() -> None:
    found = what_if("eagle3", (0.8, 0.6, 0.5), "as given", drafting(0.003, 0.0), PLAIN, 1)
    plain, one, two, three = found.chains
    assert plain.tokens_per_second == pytest.approx(1 / 0.022)
    assert (one.tokens, one.seconds) == pytest.approx((1.8, 0.026))
    assert (two.tokens, two.seconds) == pytest.approx((2.4, 0.029))
    assert (three.draft, three.target, three.other) == pytest.approx((0.010, 0.020, 0.002))
    assert found.best == three
    assert found.speedup == pytest.approx(2.9 / 0.032 * 0.022)
    assert found.reason.startswith("Every guess pays for itself")


def test_the_reason_names_what_costs_most() -> None:
    found = what_if("eagle3", (0.8, 0.6, 0.3, 0.1), "as given", drafting(0.003, 0.010), PLAIN, 1)
    assert found.best.guesses == 1
    assert found.reason.startswith("Rows cost too much from the second guess on: it would bring 0.60 tokens")
    found = what_if("eagle3", (0.8, 0.6), "as given", drafting(0.030, 0.0), PLAIN, 1)
    assert (found.best.guesses, found.speedup) == (0, 1.0)
    assert found.reason.startswith("Drafting costs too much from the first guess on")
    found = what_if("eagle3", (0.8, 0.4), "as given", drafting(-0.0001, 0.010), PLAIN, 1)
    assert found.reason.endswith("and take 10.00 ms (10.00 in the target's pass, 0.00 drafting).")


def test_guesses_are_counted_where_nobody_tells_how_often_they_hold() -> None:
    parents = [[-1, 0, 1]] * 4 + [[-1]]
    profile = Profile("self", parents, [[0, 1, 2], [0, 1], [0], [], [0]], drafting(0.003, 0.0).seconds)
    assert counted_rates(profile) == (0.8, 0.5, 0.25)
    assert what_if("self", (), "counted", profile, PLAIN, 1).rates == (0.8, 0.5, 0.25)


def test_rates_are_told_or_published() -> None:
    assert rates_of("eagle3", "0.8,0.65,0.5")[0] == pytest.approx((0.8, 0.65, 0.5))
    rates, source = rates_of("draft-model=0.5B", None)
    assert rates == PUBLISHED["draft-model"].rates
    assert "arXiv" in source
    assert rates_of("self", None) == ((), "counted on the prompts")
    for told in ("0.5,0.8", "x", "2"):
        with pytest.raises(ConfigError, match="rates is"):
            rates_of("eagle3", told)


def test_published_lengths_become_chances() -> None:
    for chance in (0.3, 0.65, 0.9):
        assert chance_of(sum(chance**depth for depth in range(6)), 5) == pytest.approx(chance, abs=1e-9)
    assert all(0 < each.chance < 1 for each in PUBLISHED.values())
    assert all("arXiv:" in each.source or ", issue " in each.source for each in PUBLISHED.values())


@pytest.mark.thorough
def test_an_assistant_is_made_up_for_a_gemma_4_alone(tmp_path: Path) -> None:
    target = load_model(write_target(tmp_path / "gemma"), "fp32")
    assert len(first_tree(target, lambda context: stand_in(context, "assistant", 3), [*range(40, 60)])) == 3
    (tmp_path / "llama").mkdir()
    other = load_model(write_tiny_model(tmp_path / "llama"), "fp32")
    with pytest.raises(CheckpointError, match="an assistant of Gemma 4, and this model is of another kind"):
        stand_in(draft_context(other, ModelRunner(other.backend, 64)), "assistant", 3)
