"""Several processes that train one head (``torchrun``): each takes its share of a step's packs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Team:
    """This process among all of them."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether it writes files and shows progress."""
        return self.rank == 0

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Every process ends with the mean of all gradients."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        first = 0
        for gradient in gradients:
            gradient.copy_(flat[first : first + gradient.numel()].view_as(gradient))
            first += gradient.numel()

    def agree(self, value: float) -> float:
        """The leader's value."""
        return self._from_leader(torch.tensor(value, dtype=torch.float64)).item()

    def sum(self, values: Tensor) -> Tensor:
        """Over all processes."""
        if self.size > 1:
            values = self._placed(values.clone())
            dist.all_reduce(values)
        return values.cpu()

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def _from_leader(self, value: Tensor) -> Tensor:
        if self.size > 1:
            value = self._placed(value)
            dist.broadcast(value, 0)
        return value

    def _placed(self, value: Tensor) -> Tensor:
        return value.cuda() if dist.get_backend() == "nccl" else value


@contextmanager
def join_team(device: torch.device) -> Iterator[Team]:
    """The team that ``torchrun`` has started, or a team of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
