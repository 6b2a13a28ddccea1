"""A recorder for devices that record nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from devices import PLACES, on
from headstart.backends.torch.recorder import Recorder, Run

RECORDED_PLACES = [*PLACES, "recorded"]
"""The devices for tests, and once more the simulated one, which records."""


class Reruns(Recorder):
    """Runs the same work again, on the tables that it was given; its results stand in the same memory every time, as
    those of a CUDA graph do.

    Args:
        each_takes: bytes of a recording.
    """

    def __init__(self, device: torch.device, most_bytes: int = 1 << 30, each_takes: int = 1) -> None:
        super().__init__(device, most_bytes)
        self._each_takes = each_takes
        self.recorded = self.replayed = self.dropped = 0

    def record(self, run: Run) -> Run:
        """See ``Recorder``."""
        results = [result.clone() for result in run()]
        self.nbytes += self._each_takes
        self.recorded += 1

        def replay() -> Sequence[Tensor]:
            self.replayed += 1
            for kept, made in zip(results, run(), strict=True):
                kept.copy_(made)
            return results

        return replay

    def _give_back(self) -> None:
        """See ``Recorder``."""
        self.dropped += 1


@contextmanager
def recording_on(place: str) -> Iterator[str]:
    """``on`` for ``RECORDED_PLACES``."""
    if place == "recorded":
        with patch("headstart.loading.recorder_of", Reruns), on("simulated") as device:
            yield device
    else:
        with on(place) as device:
            yield device
