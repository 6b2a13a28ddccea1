"""The simulated device is as strict as a real one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from devices import SIMULATED, simulated_device


def test_it_computes_the_same_numbers() -> None:
    x, y = torch.arange(12.0).view(3, 4), torch.full((3, 4), 0.5)
    expected = torch.cat((x * y, y))[1:].softmax(-1).topk(2)
    with simulated_device() as device:
        moved = torch.cat((x.to(device) * y.to(device), y.to(device)))[1:].softmax(-1).topk(2)
        made = torch.tensor([1, 2], device=device) + torch.ones(2, dtype=torch.int64, device=device)
        assert moved.values.device == made.device == SIMULATED
        assert torch.equal(moved.values.cpu(), expected.values)
        assert moved.indices.tolist() == expected.indices.tolist()
        assert made.tolist() == [2, 3]
        assert float(made.sum()) == 5


def test_what_is_written_through_a_view_is_there() -> None:
    with simulated_device() as device:
        x = torch.zeros(3, 2, device=device)
        with torch.inference_mode():
            x[1:].copy_(torch.ones(2, 2))
            x[0] += 3
            x.index_copy_(1, torch.tensor([1], device=device), torch.full((3, 1), 7.0).to(device))
        assert x.tolist() == [[3, 7], [1, 7], [1, 7]]


def test_tensors_of_two_devices_do_not_meet() -> None:
    with simulated_device() as device:
        here, there, places = torch.ones(3), torch.ones(3, device=device), torch.tensor([0, 2])
        assert (there * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a single number goes anywhere
        assert there[places].tolist() == [1, 1]  # as on a real one
        for mixed in (
            lambda: here + there,
            lambda: torch.cat((here, there)),
            lambda: there.index_select(0, places),
            lambda: there.gather(0, places),
            lambda: here[places.to(device)],
            lambda: torch.where(there > 0, here, there),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()


def test_numpy_reads_what_was_moved_back_only() -> None:
    with simulated_device() as device:
        there = torch.ones(3, device=device)
        for read in (there.numpy, lambda: np.asarray(there), there.data_ptr):
            with pytest.raises((TypeError, RuntimeError)):
                read()
        assert there.numpy(force=True).tolist() == there.cpu().numpy().tolist() == [1, 1, 1]
