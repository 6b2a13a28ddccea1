"""What is recorded, what is dropped, and when."""

from __future__ import annotations

import pytest
import torch
from devices import on
from reruns import Reruns

from headstart.backends.torch.recorder import Recordings, Run, recorder_of


def recorder(most_bytes: int = 100) -> Reruns:
    return Reruns(torch.device("cpu"), most_bytes, each_takes=10)


class Owner:
    """Records sums of a number, and counts how often."""

    def __init__(self, recorder: Reruns, most: int = 4) -> None:
        self.recordings: Recordings[Run] = Recordings(recorder, most)
        self.value = torch.ones(1)
        self.made: list[int] = []

    def ask(self, shape: int) -> float | None:
        """Shape times the value; None: it is not recorded."""

        def make() -> Run:
            self.made.append(shape)
            return self.recordings.recorder.record(lambda: [self.value * shape])

        replay = self.recordings.of(shape, make)
        return None if replay is None else replay()[0].item()


def test_a_shape_is_recorded_when_it_comes_again() -> None:
    owner = Owner(recorder())
    assert owner.ask(3) is None
    assert [owner.ask(3) for _ in range(3)] == [3, 3, 3]
    owner.value.fill_(2)
    assert owner.ask(3) == 6
    assert owner.made == [3]


def test_those_not_asked_for_longest_are_dropped() -> None:
    owner = Owner(recorder(), most=2)
    for shape in (1, 2):
        assert owner.ask(shape) is None
        assert owner.ask(shape) == shape
    owner.ask(1)
    assert owner.ask(3) is None
    assert owner.ask(3) == 3
    assert len(owner.recordings) == 2
    assert [owner.ask(shape) for shape in (1, 2)] == [1, 2]
    assert owner.made == [1, 2, 3, 2]


def test_full_memory_is_begun_afresh_by_all_owners_once_it_has_paid() -> None:
    shared = recorder(most_bytes=20)
    owners = [Owner(shared), Owner(shared)]
    for owner in owners:
        owner.ask(1)
        owner.ask(1)
    assert shared.nbytes == 20
    owners[0].ask(2)
    assert owners[0].ask(2) is None  # nothing was replayed yet
    assert shared.dropped == 0
    for _ in range(32):
        assert owners[1].ask(1) == 1
    assert owners[0].ask(2) == 2
    assert (shared.dropped, shared.nbytes) == (1, 10)
    assert [len(owner.recordings) for owner in owners] == [1, 0]
    assert owners[1].ask(1) == 1


def test_owners_that_are_gone_are_forgotten() -> None:
    shared = recorder()
    owner = Owner(shared)
    assert len(shared._owners) == 1
    del owner
    assert not shared._owners


def test_where_the_memory_is_another_all_are_dropped() -> None:
    owner = Owner(recorder())
    owner.recordings.of_memory(1)
    owner.ask(5)
    owner.ask(5)
    owner.recordings.of_memory(1)
    assert len(owner.recordings) == 1
    owner.recordings.of_memory(2)
    assert len(owner.recordings) == 0
    assert owner.ask(5) == 5
    assert owner.made == [5, 5]


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_only_cuda_records(name: str) -> None:
    assert recorder_of(torch.device(name)) is None


def test_one_recorder_serves_all_models_of_a_device() -> None:
    assert recorder_of(torch.device("cuda:0")) is recorder_of(torch.device("cuda:0")) is not None


@pytest.mark.parametrize("work", ["item", "nonzero", "bool index", "list", "to the processor", "unique"])
def test_the_recorder_of_tests_refuses_what_waits_for_a_device(work: str) -> None:
    with on("simulated") as device, torch.inference_mode():
        there = torch.arange(4).to(device)
        works = {
            "item": lambda: there.sum().item(),
            "nonzero": lambda: there.nonzero(),
            "bool index": lambda: there[there > 1],
            "list": lambda: torch.tensor([1, 2], device=device),
            "to the processor": lambda: there.cpu(),
            "unique": lambda: torch.unique(there),
        }
        owner = Reruns(torch.device(device))
        with pytest.raises(RuntimeError, match="capturing"):
            owner.record(lambda: [works[work](), there])  # type: ignore[list-item]
        assert [each.tolist() for each in owner.record(lambda: [there + 1, torch.arange(2, device=device)])()] == [
            [1, 2, 3, 4],
            [0, 1],
        ]
