"""Tables of integers that a device gets in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Staging:
    """int64 tables that are filled on the host and always stand in the same memory of a device.

    Args:
        shapes: of the tables, by name.
        device: where they go.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        sizes = [math.prod(shape) for shape in shapes.values()]
        on_cuda = device.type == "cuda"
        self._host = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=on_cuda)
        self._device = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._sent = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]
        parts = zip(shapes.items(), torch.split(self._host, sizes), torch.split(self._device, sizes), strict=True)
        self.host: dict[str, NDArray[np.int64]] = {}
        self.device: dict[str, Tensor] = {}
        for (name, shape), here, there in parts:
            self.host[name], self.device[name] = here.view(shape).numpy(), there.view(shape)

    def begin(self) -> None:
        """Wait until what was sent last has left the host's tables, which are then free to be filled."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self) -> None:
        """Copy all tables to the device, in its own time."""
        self._device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))
