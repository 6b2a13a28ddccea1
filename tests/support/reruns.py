"""A recorder for devices that record nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from devices import PLACES, is_composite, on
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headstart.backends.torch.recorder import Recorder, Run

RECORDED_PLACES = [*PLACES, "recorded"]
"""The devices for tests, and once more the simulated one, which records."""

_aten = torch.ops.aten
_ASKING = {
    *(_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten._unique2.default),
    *(_aten.unique_dim.default, _aten.repeat_interleave.Tensor, _aten.equal.default, _aten.is_nonzero.default),
}
"""What waits for a device's numbers."""
_MOVING = {_aten._to_copy.default, _aten.copy_.default}
_PICKING = {_aten.index.Tensor, _aten.index_put_.default}


class _Capture(TorchDispatchMode):
    """Refuses what CUDA refuses while it records: whatever the processor waits for, or sends."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if is_composite(func):
            with self:
                return func.decompose(*args, **given)
        tensors = [each for each in args if isinstance(each, Tensor)]
        places = {each.device for each in tensors}
        if given.get("device") is not None:
            places.add(torch.device(given["device"]))
        picks = args[1] if func in _PICKING else ()
        if (
            func in _ASKING
            or (func in _MOVING and len(places) > 1)
            or any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in picks)
        ):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        return func(*args, **given)


class Reruns(Recorder):
    """Runs the same work again, on the tables that it was given; its results stand in the same memory every time, as
    those of a CUDA graph do, and what waits for the device is refused.

    Args:
        each_takes: bytes of a recording.
    """

    def __init__(self, device: torch.device, most_bytes: int = 1 << 30, each_takes: int = 1) -> None:
        super().__init__(device, most_bytes)
        self._each_takes = each_takes
        self.recorded = self.replayed = self.dropped = 0

    def record(self, run: Run) -> Run:
        """See ``Recorder``."""
        with _Capture():
            results = [result.clone() for result in run()]
        self.nbytes += self._each_takes
        self.recorded += 1

        def replay() -> Sequence[Tensor]:
            self.replayed += 1
            with _Capture():
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
        with patch("headstart.loading.model.recorder_of", Reruns), on("simulated") as device:
            yield device
    else:
        with on(place) as device:
            yield device
