"""Laws from log-probabilities, and the tests against them: right draws pass, wrong ones fail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from headstart_lab.audit.endpoint.answers import Answer, Choice, Listed, Position
from headstart_lab.audit.endpoint.laws import (
    OTHER,
    SAME_ROW,
    Calibration,
    Transform,
    biased,
    joint_law,
    min_p,
    top_k,
    top_p,
    two_samples,
    whole,
)

LISTED = tuple(Listed(key, key, math.log(p)) for key, p in (("a", 0.4), ("b", 0.3), ("c", 0.15), ("d", 0.05)))
WHOLE = Transform("temperature 1", {}, whole)


def test_a_law_without_transforms_has_a_cell_for_the_rest() -> None:
    assert whole(LISTED) == pytest.approx({"a": 0.4, "b": 0.3, "c": 0.15, "d": 0.05, OTHER: 0.1})


def test_laws_after_transforms() -> None:
    assert top_k(2)(LISTED, SAME_ROW) == pytest.approx({"a": 4 / 7, "b": 3 / 7, OTHER: 0})
    cool = {key: p**2 / 0.25 for key, p in (("a", 0.4), ("b", 0.3))}
    assert top_k(2, temperature=0.5)(LISTED, SAME_ROW) == pytest.approx({**cool, OTHER: 0})
    assert top_p(0.75)(LISTED, SAME_ROW) == pytest.approx({"a": 8 / 17, "b": 6 / 17, "c": 3 / 17, OTHER: 0})
    assert min_p(0.5)(LISTED, SAME_ROW) == pytest.approx({"a": 4 / 7, "b": 3 / 7, OTHER: 0})
    raised = biased({"a": -100.0, "b": math.log(2)})(LISTED, SAME_ROW)
    assert raised == pytest.approx({"a": 0, "b": 0.6 / 0.9, "c": 0.15 / 0.9, "d": 0.05 / 0.9, OTHER: 0.1 / 0.9})


@pytest.mark.parametrize(
    ("cut", "why"),
    [
        (top_k(4), "the fifth is not listed"),
        (top_p(0.95), "it is not reached"),
        (top_p(0.7), "it is reached exactly"),
        (min_p(0.1), "others may be as probable"),
        (min_p(0.75), "it is just the second one's"),
        (biased({"z": 5.0}), "a raised token is not listed"),
    ],
)
def test_what_does_not_follow_is_not_said(cut, why) -> None:
    assert cut(LISTED, SAME_ROW) is None, why


def test_equals_at_the_edge_are_not_told_apart() -> None:
    tied = (*LISTED[:2], Listed("e", "e", LISTED[1].logprob))
    assert top_k(2)(tied, SAME_ROW) is None
    assert top_p(0.5)(tied, SAME_ROW) is None


def answer(drawn: Sequence[str], text: str = "", reason: str = "length") -> Answer:
    """One whose positions all list the same tokens, the last as if it had been put there for the draw's sake."""
    by_key = {each.key: each for each in (*LISTED, Listed("z", "z", math.log(0.02)))}
    positions = tuple(Position(by_key[key], (*LISTED, Listed("y", "y", -9.0))) for key in drawn)
    return Answer((Choice(text, reason, positions),), None, None, None)


def calibrated(probs: Sequence[float], seed: int, transform: Transform = WHOLE, draws: int = 600) -> Calibration:
    keys = np.random.default_rng(seed).choice(["a", "b", "c", "d", "z"], p=probs, size=draws)
    seen = Calibration(transform, asked=5)
    for start in range(0, draws, 20):
        seen.add(answer(keys[start : start + 20].tolist()))
    return seen


RIGHT = (0.4, 0.3, 0.15, 0.05, 0.1)


@pytest.mark.thorough
def test_p_values_of_right_draws_are_uniform() -> None:
    values = [calibrated(RIGHT, seed).goodness().p_value for seed in range(300)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.thorough
def test_a_law_as_far_off_as_would_be_found_is_found_nine_times_in_ten() -> None:
    distance = calibrated(RIGHT, 0).goodness().detectable(1e-3)
    assert distance is not None
    wrong = np.array(RIGHT) + distance * np.array([0.5, -1, 0.5, 0, 0])
    found = [calibrated(wrong, seed).goodness().p_value < 1e-3 for seed in range(100)]
    assert sum(found) >= 85


def test_a_draw_of_what_cannot_be_drawn_is_seen_at_once() -> None:
    cut = Transform("top_k 2", {}, top_k(2))
    assert calibrated((0.5, 0.5, 0, 0, 0), 1, cut).impossible == 0
    seen = calibrated((0.5, 0.49, 0.01, 0, 0), 1, cut)
    assert seen.impossible > 0
    assert seen.goodness().p_value == 0


def test_undecided_positions_are_counted_apart() -> None:
    seen = calibrated(RIGHT, 0, Transform("top_p 0.7", {}, top_p(0.7)))
    assert (seen.draws, seen.undecided) == (0, 600)
    assert seen.goodness().p_value == 1


def test_the_joint_law_is_put_together_from_what_is_known() -> None:
    law = joint_law(WHOLE, [answer(["a", "b"], "ab")], asked=5, length=2)
    assert law["aa"] == pytest.approx(0.16)
    assert law["ac"] == pytest.approx(0.06)
    # After any other first token nothing is known.
    assert law[OTHER] == pytest.approx(0.6 + 0.4 * 0.1)
    assert sum(law.values()) == pytest.approx(1)


def test_a_token_that_ends_texts_is_not_in_them() -> None:
    ended = answer(["a", "d"], "a", reason="stop")
    law = joint_law(WHOLE, [ended], asked=5, length=2)
    assert law["a"] == pytest.approx(0.4 * 0.05)
    assert "ad" not in law


def test_two_samples_of_one_law_differ_by_chance_alone() -> None:
    random = np.random.default_rng(0)

    def sample(probs: Sequence[float], count: int) -> list[str]:
        return random.choice(list("abcdz"), p=probs, size=count).tolist()

    values = [two_samples(sample(RIGHT, 150), sample(RIGHT, 250)).p_value for _ in range(300)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert two_samples(sample(RIGHT, 400), sample((0.55, 0.15, 0.15, 0.05, 0.1), 400)).p_value < 1e-4


def test_texts_that_never_come_twice_prove_nothing() -> None:
    ours, theirs = ([f"{side}{i}" for i in range(200)] for side in "ab")
    assert two_samples(ours, theirs).p_value < 1e-6  # no text of one is the other's
    random = np.random.default_rng(1)
    mixed = random.permutation([*ours, *theirs]).tolist()
    assert two_samples(mixed[:200], mixed[200:]).p_value > 1e-3
