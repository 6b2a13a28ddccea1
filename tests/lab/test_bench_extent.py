"""What a benchmark measures within a budget of time."""

from __future__ import annotations

import pytest

from headstart_lab.bench.extent import Extent, Pace, cost, fit
from headstart_lab.bench.prompts import BenchPrompt, groups_of, read_prompts

PROMPTS = read_prompts()
QUICK, SLOW = Pace(5.0, 1e-4, 0.004), Pace(20.0, 1e-3, 0.04)


@pytest.mark.parametrize("pace", [QUICK, SLOW])
@pytest.mark.parametrize("seconds", [30, 120, 600, 6000])
@pytest.mark.parametrize("contenders", [2, 7, 20])
def test_it_fits_or_is_the_least_there_is(pace: Pace, seconds: float, contenders: int) -> None:
    extent = fit(PROMPTS, pace, contenders, seconds)
    least = Extent(extent.prompts, 16, 1)
    assert cost(extent, pace, contenders) <= seconds or (extent == least and len(extent.prompts) == 6)
    assert set(groups_of(extent.prompts)) == set(groups_of(PROMPTS))


def test_more_time_never_means_less() -> None:
    sizes = [(each.max_tokens, len(each.prompts)) for each in (fit(PROMPTS, QUICK, 7, s) for s in range(60, 1200, 20))]
    assert sizes == sorted(sizes)
    assert sizes[-1] == (128, 24)


def test_a_spread_comes_first_then_whole_answers_then_more_prompts() -> None:
    assert fit(PROMPTS, QUICK, 7, 100).repeats == 3
    one_of_each = Extent([prompt for prompt in fit(PROMPTS, QUICK, 7, 1).prompts], 128, 3)
    assert fit(PROMPTS, QUICK, 7, cost(one_of_each, QUICK, 7) + 1) == one_of_each


def test_what_was_asked_for_stays() -> None:
    assert fit(PROMPTS, SLOW, 7, 1.0, max_tokens=100, repeats=4).max_tokens == 100
    assert fit(PROMPTS, SLOW, 7, 1.0, max_tokens=100, repeats=4).repeats == 4


def test_later_turns_read_what_was_said_before() -> None:
    pace = Pace(0.0, 1.0, 0.0)
    assert cost(Extent([BenchPrompt("a", "qa", ("12345", "123"))], 10, 2), pace, 3) == 2 * 3 * (5 + 8)
