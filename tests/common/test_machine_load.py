"""Who used the processors while something was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.common import machine_load
from headstart.common.machine_load import LoadWatch, MachineLoad
from headstart_lab.page.events import share_of_others

IDLE = 1_000_000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine of three processors, of which the process may use two; its clocks stand where they are put."""
    stat, clocks = tmp_path / "stat", {"now": 100.0, "own": 50.0}

    def tell(*processors: tuple[int, int]) -> None:
        rows = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        rows += [f"cpu{i} {used} 0 0 {IDLE} 77 0 0 {stolen} 0 0" for i, (used, stolen) in enumerate(processors)]
        stat.write_text("\n".join([*rows, "intr 5 5 5"]))

    monkeypatch.setattr(machine_load, "_STAT", stat)
    monkeypatch.setattr(machine_load, "_processors", lambda: {0, 2})
    monkeypatch.setattr(machine_load, "_own_seconds", lambda: clocks["own"])
    monkeypatch.setattr(machine_load.time, "perf_counter", lambda: clocks["now"])
    monkeypatch.setattr(machine_load.os, "sysconf", lambda name: 100)
    return tell, clocks


def test_others_are_what_was_used_less_ones_own_on_ones_own_processors(machine) -> None:
    tell, clocks = machine
    tell((1000, 0), (0, 0), (500, 10))
    watch = LoadWatch(threads=2)
    tell((1900, 0), (9999, 9999), (1300, 60))  # 17 seconds used, half a second stolen
    clocks["now"], clocks["own"] = 110.0, 54.0
    load = watch.so_far()
    assert (load.seconds, load.cores) == (10.0, 2)
    assert load.others == pytest.approx(1.3)
    assert load.stolen == pytest.approx(0.05)
    assert load.busy
    assert load.sentence.startswith("Other programs used 1.3 of 2 cores during the measurement")


def test_a_quiet_machine_says_nothing(machine) -> None:
    tell, clocks = machine
    tell((0, 0), (0, 0), (0, 0))
    watch = LoadWatch(threads=2)
    tell((1000, 0), (0, 0), (990, 0))
    clocks["now"], clocks["own"] = 110.0, 69.5
    assert not watch.so_far().busy
    assert watch.so_far().sentence == ""


@pytest.mark.parametrize("text", ["", "cpu0 1 2", "cpu0 a b c d e f g h", "nothing"])
def test_what_the_system_does_not_tell_is_unknown(tmp_path: Path, monkeypatch, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    for path in (tmp_path / "stat", tmp_path / "missing"):
        monkeypatch.setattr(machine_load, "_STAT", path)
        load = LoadWatch(threads=1).so_far()
        assert (load.others, load.stolen, load.busy, load.sentence) == (None, None, False, "")


def test_cores_that_nobody_computes_with_may_be_used_by_others() -> None:
    assert not MachineLoad(1.0, 64, 2, others=40.0, stolen=0.0, load_average=42.0).busy
    assert MachineLoad(1.0, 64, 64, others=40.0, stolen=0.0, load_average=42.0).busy


def test_a_hypervisor_is_named() -> None:
    assert "the hypervisor kept back 0.8 of 2 cores" in MachineLoad(1.0, 2, 2, 0.4, 0.8, 3.0).sentence
    assert MachineLoad(1.0, 2, 2, 0.01, 0.8, None).sentence == (
        "The hypervisor kept back 0.8 of 2 cores during the measurement."
    )


def test_the_share_of_others_is_of_all_cores() -> None:
    assert share_of_others(MachineLoad(1.0, 2, 2, 0.4, 0.8, 3.0)) == pytest.approx(0.6)
    assert share_of_others(MachineLoad(1.0, 2, 2, 9.0, 0.8, 3.0)) == 1.0
    assert share_of_others(MachineLoad(1.0, 2, 2, None, None, 3.0)) is None
