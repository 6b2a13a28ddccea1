from __future__ import annotations

import math

import numpy as np
import pytest

from headstart.drafting.planning.guess_rates import AGREED, CONTRADICTED, GuessRates, log_odds
from headstart.drafting.planning.learned_acceptance import CLUES, Clues, LearnedAcceptance, chances_of, clues_of
from headstart.drafting.planning.merged import Guesses, Overlay
from headstart.passes.draft_tree import ROOT, DraftTree

GRADES = 192


def taught(learned: LearnedAcceptance, rng: np.random.Generator, truth: Clues, count: int) -> list[tuple[float, float]]:
    """Let it learn from guesses that hold by true weights; what it and the graded rate said before, as log losses."""
    losses = []
    for _ in range(count):
        rows = rng.normal(0, 1, (8, CLUES))
        rows[:, 0] = 1.0
        held = rng.random(8) < chances_of(rows @ truth)
        said = chances_of(rows @ learned.weights), chances_of(rows[:, 1])
        losses.append(tuple(float(-np.log(np.where(held, each, 1 - each)).mean()) for each in said))
        learned.learn(rows, held.tolist())
    return losses  # type: ignore[return-value]


def test_at_first_it_says_what_the_graded_rates_say() -> None:
    rates = GuessRates([0.1, 0.25, 0.7, 0.9] * 48, 1.0, 10.0)
    guesses = Guesses([1, 2, 3, 4], [ROOT, ROOT, 0, 2], [0, 1, 2, 3], own=[0.5, -1.0, 2.0, 3.0])
    overlay = Overlay([(1, guesses)])
    ((rows,),) = clues_of([(overlay, overlay.related(), [rates.log_odds])])
    assert chances_of(rows @ LearnedAcceptance().weights) == pytest.approx([0.1, 0.25, 0.7, 0.9])


def test_clues_say_where_a_guess_stands_and_who_agrees() -> None:
    #      root -> 1 -> 2, 3 (the second sibling); the other says 1 -> 9 -> 8
    one = Guesses([1, 2, 3], [ROOT, 0, 0], [0, 1, 2], own=[log_odds(0.5), log_odds(0.9), log_odds(0.01)])
    other = Guesses([1, 9, 8], [ROOT, 0, 1], [3, 4, 5])
    rates = [GuessRates(np.linspace(low, 0.9, GRADES).tolist(), 1.0, 10.0) for low in (0.05, 0.2)]
    overlay = Overlay([(1, one), (2, other)])
    related = overlay.related()
    ((mine, its),) = clues_of([(overlay, related, [each.log_odds for each in rates])])
    said = [[of.log_odds[grade] for grade in each.grades] for each, of in zip(related, rates, strict=True)]
    agreed, contradicted, own = [1, 0, 0], [0, 1, 1], one.own
    assert [grade // 64 * 64 for grade in related[0].grades] == [AGREED, CONTRADICTED, CONTRADICTED]
    wanted = np.array(
        [
            [
                *(1, said[0][i], own[i], math.log(1 + (i > 0)), math.log(1 + (i == 2)), agreed[i], contradicted[i]),
                *(agreed[i] * own[i], contradicted[i] * own[i], said[1][0] if agreed[i] else 0),
            ]
            for i in range(3)
        ]
    )
    np.testing.assert_allclose(mine, wanted)
    assert its[:, 2].tolist() == [0, 0, 0]
    assert its[:, 3] == pytest.approx([0, math.log(2), math.log(3)])
    assert its[0, 9] == said[0][0]


def test_rounds_of_several_sequences_are_told_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    told = []
    for size in (3, 0, 5):
        guesses = [
            Guesses([int(each) for each in rng.permutation(9)[:size]], [ROOT] * size, [0] * size) for _ in range(2)
        ]
        overlay = Overlay([(1 << place, each) for place, each in enumerate(guesses)])
        rates = [GuessRates(rng.random(GRADES).tolist(), 1.0, 10.0) for _ in guesses]
        told.append((overlay, overlay.related(), [each.log_odds for each in rates]))
    for together, each in zip(clues_of(told), told, strict=True):
        for rows, alone in zip(together, clues_of([each])[0], strict=True):
            np.testing.assert_array_equal(rows, alone)


def test_it_learns_what_tells() -> None:
    """Where clues beyond the rate tell, it comes to say so; whatever order, the same judged guesses teach the same."""
    truth = np.array([-0.5, 0.4, 0.7, 0, -0.5, 0.3, -0.8, 0, 0, 0.4])
    learned, again = LearnedAcceptance(), LearnedAcceptance()
    losses = np.array(taught(learned, np.random.default_rng(1), truth, 600))
    taught(again, np.random.default_rng(1), truth, 600)
    assert losses[-200:, 0].mean() < losses[-200:, 1].mean() - 0.1
    assert np.abs(learned.weights - truth).max() < 0.3
    np.testing.assert_array_equal(learned.weights, again.weights)


def test_a_guess_or_two_at_a_time_teach_as_many_at_once() -> None:
    rng = np.random.default_rng(2)
    rows, held = rng.normal(0, 1, (128, CLUES)), rng.random(128) < 0.5
    at_once, singly = LearnedAcceptance(), LearnedAcceptance()
    at_once.learn(rows, held.tolist())
    for row, holds in zip(rows, held, strict=True):
        singly.learn(row[None], [bool(holds)])
    np.testing.assert_allclose(singly.weights, at_once.weights)


@pytest.mark.parametrize("rounds", [10, 50])
def test_where_clues_mislead_it_does_no_harm(rounds: int) -> None:
    """What one clue means turns about again and again: the graded rates count where they say more."""
    learned, rng, losses = LearnedAcceptance(), np.random.default_rng(3), []
    for turn in range(600 // rounds):
        truth = np.array([0, 1.0, 2.0 * (-1) ** turn, 0, 0, 0, 0, 0, 0, 0])
        losses += taught(learned, rng, truth, rounds)
    said, graded = np.array(losses).T
    assert said.mean() < graded.mean() + 0.01
    assert np.isclose(said, graded).mean() > (0.3 if rounds == 10 else 0.05)


def test_weights_stay_within_bounds_whatever_comes() -> None:
    learned = LearnedAcceptance()
    rows = np.full((64, CLUES), 7.0)
    for round_number in range(300):
        learned.learn(rows * (-1) ** (round_number // 40), [True] * 64)
    assert np.isfinite(learned._weights).all()
    assert np.abs(learned._weights).max() <= 4.0


def test_no_chance_of_a_drafter_brings_what_is_not_a_number() -> None:
    tree = DraftTree(
        np.array([1, 2, 3], np.int32), np.array([ROOT, 0, 1], np.int32), chances=np.array([0.0, 1.0, math.nan])
    )
    guesses = Guesses.of(tree)
    assert guesses.own == pytest.approx([-math.log(999), math.log(999), -math.log(999)])
