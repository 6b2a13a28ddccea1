"""What generation settings demand of outputs, alone and beside a language of the request's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headstart.engine.output_rules import OutputRules


class Evens:
    """Even tokens only."""

    def mask(self, path: Sequence[int]) -> np.ndarray:
        return np.arange(6) % 2 == 0

    def allowed(self, path: Sequence[int]) -> int:
        return next((place for place, token in enumerate(path) if token % 2), len(path))

    def advance(self, token: int) -> None:
        assert token % 2 == 0


def allowed(rules: OutputRules, *path: int) -> list[int]:
    return np.flatnonzero(rules.mask(path)).tolist()


@pytest.mark.parametrize("inner", [None, Evens()])
def test_first_and_last_places_are_told_by_what_was_said(inner: Evens | None) -> None:
    rules = OutputRules(6, [2, 9], 5, lambda: 4, inner)
    everything = [0, 2, 4] if inner else [0, 1, 2, 3, 4, 5]
    assert rules.applies
    assert allowed(rules) == [token for token in everything if token != 2]
    assert allowed(rules, 4) == everything
    assert allowed(rules, 4, 4, 4) == [5]
    rules.advance(4)
    assert allowed(rules) == everything
    assert allowed(rules, 4, 4) == [5]


@pytest.mark.parametrize(
    ("path", "count"), [([2, 4], 0), ([4, 2, 0, 5], 4), ([4, 2, 0, 4], 3), ([4, 1], 1), ([], 0), ([0, 0], 2)]
)
def test_guesses_that_cannot_follow_are_cut(path: list[int], count: int) -> None:
    assert OutputRules(6, [2], 5, lambda: 4, Evens()).allowed(path[:3]) == min(count, 3)
    if len(path) == 4:
        # The forced token need not be one of the language.
        assert OutputRules(6, [2], 5, lambda: 4).allowed(path) == count


def test_rules_that_demand_nothing_say_so() -> None:
    assert not OutputRules(6, [], None, lambda: 4).applies
    assert not OutputRules(6, [7], 8, lambda: 4).applies
