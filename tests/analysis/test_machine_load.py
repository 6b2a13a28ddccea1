"""What other programs took, from made-up readings of the system's counters."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headstart.analysis import machine_load
from headstart.analysis.machine_load import OtherLoad

LINE = "cpu  {user} 0 0 1000 0 0 0 {stolen} 0 0\ncpu0 1 2 3\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two cores, a hundred ticks a second, at a time of its own."""
    stat = tmp_path / "stat"
    stat.write_text(LINE.format(user=500, stolen=0))
    monkeypatch.setattr(machine_load, "_STAT", stat)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(time, "perf_counter", lambda: 10.0)
    monkeypatch.setattr(time, "process_time", lambda: 3.0)
    return stat


@pytest.mark.parametrize(
    ("user", "stolen", "own", "share"),
    [(600, 0, 1.0, 0.0), (700, 0, 1.0, 0.25), (600, 200, 1.0, 0.5), (500, 0, 0.5, 0.0), (9000, 0, 0.0, 1.0)],
)
def test_the_work_of_others_is_told_from_ones_own(
    machine: Path, monkeypatch: pytest.MonkeyPatch, user: int, stolen: int, own: float, share: float
) -> None:
    load = OtherLoad()
    machine.write_text(LINE.format(user=user, stolen=stolen))
    monkeypatch.setattr(time, "perf_counter", lambda: 12.0)
    monkeypatch.setattr(time, "process_time", lambda: 3.0 + own)
    assert load.share() == pytest.approx(share)


def test_a_system_that_does_not_say_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_load, "_STAT", tmp_path / "nothing")
    assert OtherLoad().share() is None
