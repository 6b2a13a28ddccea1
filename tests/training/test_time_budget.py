from __future__ import annotations

import pytest

from headstart.training.time_budget import TIMED_STEPS, Pace, steps_within


@pytest.mark.parametrize(
    ("seconds", "unread", "steps"),
    # A step takes 2 seconds, 3 more on text that is read for the first time.
    [(0, 4, 0), (20, 4, 4), (19, 4, 3), (30, 4, 9), (30, 0, 15), (30, None, 6)],
)
def test_minutes_allow_for_a_first_reading(seconds: float, unread: int | None, steps: int) -> None:
    assert steps_within(seconds, 2.0, 3.0, unread) == steps


def test_the_latest_steps_set_the_pace() -> None:
    pace = Pace()
    pace.measuring = 0.5
    for _ in range(TIMED_STEPS):
        assert not pace.known
        pace.add(4.5, 3.0)
    assert pace.known
    assert pace.fitting(100.0, None) == 20
    assert not pace.known
    for _ in range(TIMED_STEPS):
        pace.add(9.5, 0.0)
    assert pace.fitting(100.0, None) == 10
