from __future__ import annotations

import pytest

from headstart_train.time_budget import TIMED_STEPS, StepTimes, steps_within


@pytest.mark.parametrize(
    ("seconds", "unread", "steps"),
    # A step takes 2 seconds, 3 more on text that is read for the first time.
    [(0, 4, 0), (20, 4, 4), (19, 4, 3), (30, 4, 9), (30, 0, 15), (30, None, 6)],
)
def test_minutes_allow_for_a_first_reading(seconds: float, unread: int | None, steps: int) -> None:
    assert steps_within(seconds, 2.0, 3.0, unread) == steps


def test_the_latest_steps_set_the_pace() -> None:
    times = StepTimes()
    times.measuring = 0.5
    for _ in range(TIMED_STEPS):
        assert not times.known
        times.add(4.5, 3.0)
    assert times.known
    assert times.fitting(100.0, None) == 20
    assert not times.known
    for _ in range(TIMED_STEPS):
        times.add(9.5, 0.0)
    assert times.fitting(100.0, None) == 10
