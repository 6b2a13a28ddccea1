"""The mean of weights: which steps count, and that the weights themselves go on as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headstart_train.averaging import RunningMean


def walked(share: float, values: list[float]) -> tuple[nn.Linear, RunningMean]:
    """A head whose weight was each of the values, one a step."""
    head = nn.Linear(1, 1, bias=False)
    mean = RunningMean(head, share)
    for step, value in enumerate(values, 1):
        with torch.no_grad():
            head.weight.fill_(value)
        mean.count(step)
    return head, mean


def inside(head: nn.Linear, mean: RunningMean) -> float:
    with mean.in_place():
        return head.weight.item()


def test_all_steps_count_alike_where_all_are_asked_for() -> None:
    assert inside(*walked(1.0, [3.0, 5.0, 10.0])) == pytest.approx(6.0)


def test_early_steps_are_forgotten() -> None:
    noise = [1.0 if step % 2 else -1.0 for step in range(200)]
    assert inside(*walked(0.25, [100.0, *noise])) == pytest.approx(0.0, abs=0.1)
    assert inside(*walked(1.0, [100.0, *noise])) == pytest.approx(0.5, abs=0.1)


def test_no_share_is_the_last_step() -> None:
    head, mean = walked(0.0, [3.0, 5.0])
    assert inside(head, mean) == 5.0
    assert not mean.state()


def test_the_weights_come_back_and_still_learn() -> None:
    head, mean = walked(1.0, [1.0, 2.0])
    with mean.in_place():
        assert head.weight.item() == 1.5
    assert head.weight.item() == 2.0
    head(torch.ones(1)).backward()
    torch.optim.SGD(head.parameters(), lr=1.0).step()
    assert head.weight.item() == 1.0
    assert inside(head, mean) == 1.5


def test_it_goes_on_from_its_state() -> None:
    _, mean = walked(0.5, [1.0, 2.0, 7.0])
    state = {name: tensor.clone() for name, tensor in mean.state().items()}
    head, other = walked(0.5, [9.0])
    other.load_state(state)
    assert inside(head, other) == inside(*walked(0.5, [1.0, 2.0, 7.0]))
