"""Work that is recorded once on a device and replayed: a processor then starts one thing where it started hundreds."""

from __future__ import annotations

import gc
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Run = Callable[[], Sequence[Tensor]]
"""Work of the same operations on the same memory every time; its results."""
Made = TypeVar("Made")

GRAPH_BYTES = 1 << 30
"""Memory of a device that recordings may take."""
_MOST_RECORDINGS = 96
"""Of one owner. A text that grows past a bound of keys leaves those of shorter texts behind."""
_MOST_SEEN = 1024
_LEAST_REPLAYS = 16
"""Of a recording on average, before it makes room for others."""


class Recorder(ABC):
    """Records work on one device.

    Args:
        device: where the work is done.
        most_bytes: memory that recordings may take.
    """

    def __init__(self, device: torch.device, most_bytes: int = GRAPH_BYTES) -> None:
        self.device, self.most_bytes = device, most_bytes
        self.nbytes = 0
        """Memory that recordings take."""
        self.recordings = self.replays = 0
        """Made, and asked for again, since memory was last full."""
        self._owners: WeakSet[Recordings[Any]] = WeakSet()

    @abstractmethod
    def record(self, run: Run) -> Run:
        """What replays ``run``. Its results stand in the same memory every time, until the next replay.

        Raises:
            RuntimeError: it cannot be recorded, as when it asks the device for a number.
        """

    def join(self, owner: Recordings[Any]) -> None:
        """Remember who owns recordings."""
        self._owners.add(owner)

    def make_room(self) -> bool:
        """Whether there is memory for a further recording. Where it is full, all recordings of all owners are dropped;
        but not before they have paid, since making one takes as long as several passes."""
        if self.nbytes < self.most_bytes:
            return True
        if self.replays < _LEAST_REPLAYS * self.recordings:
            return False
        for owner in self._owners:
            owner.clear()
        self.nbytes = self.recordings = self.replays = 0
        self._give_back()
        return True

    @abstractmethod
    def _give_back(self) -> None:
        """All recordings are gone, and their memory is to go, too."""


class CudaGraphs(Recorder):
    """Records CUDA graphs (``torch.cuda.CUDAGraph``), which share what memory they need between their kernels."""

    def __init__(self, device: torch.device, most_bytes: int = GRAPH_BYTES) -> None:
        super().__init__(device, most_bytes)
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._lock = Lock()

    def record(self, run: Run) -> Run:
        """See ``Recorder``."""
        with self._lock, torch.cuda.device(self.device):
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            if not self._graphs:
                # A pool cannot be used again once the last of its graphs is gone.
                self._pool, self.nbytes = torch.cuda.graph_pool_handle(), 0
            # Libraries load kernels and choose among them when they are called first, which must not be recorded.
            run()
            graph = torch.cuda.CUDAGraph()
            before = torch.cuda.memory_reserved(self.device)
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream), _no_collection():
                # Other threads may use the device meanwhile.
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    results = run()
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            self._graphs.add(graph)
            self.nbytes += max(torch.cuda.memory_reserved(self.device) - before, 0)

        def replay() -> Sequence[Tensor]:
            graph.replay()
            return results

        return replay

    def _give_back(self) -> None:
        """See ``Recorder``."""
        torch.cuda.empty_cache()


@cache
def recorder_of(device: torch.device) -> CudaGraphs | None:
    """What records on a device, one for all models on it; None: it is none of CUDA's."""
    return CudaGraphs(device) if device.type == "cuda" else None


class Recordings(Generic[Made]):
    """What one owner has recorded, by shape: from the second time on that a shape is asked for.

    Those that were not asked for longest are dropped.

    Args:
        recorder: shared with other owners.
        most: recordings that are kept.
    """

    def __init__(self, recorder: Recorder, most: int = _MOST_RECORDINGS) -> None:
        self.recorder = recorder
        self._most = most
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._made: OrderedDict[Hashable, Made] = OrderedDict()
        self._memory: Hashable = None
        self._off = False
        recorder.join(self)

    def __len__(self) -> int:
        return len(self._made)

    def of_memory(self, memory: Hashable) -> None:
        """Drop all where the memory that they read was another one's: ``memory`` tells which it is."""
        if memory != self._memory:
            self.clear()
            self._memory = memory

    def of(self, shape: Hashable, make: Callable[[], Made]) -> Made | None:
        """What ``make`` makes of a shape; None where it is new, or where recording has failed."""
        made = self._made.get(shape)
        if made is not None:
            self._made.move_to_end(shape)
            self.recorder.replays += 1
            return made
        if self._off:
            return None
        if shape not in self._seen:
            self._seen[shape] = None
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
            return None
        if not self.recorder.make_room():
            return None
        while len(self._made) >= self._most:
            self._made.popitem(last=False)
        try:
            made = make()
        except RuntimeError as error:
            self.clear()
            self._off = True
            logger.warning(
                "Passes could not be recorded as CUDA graphs, so they run one kernel at a time, as correct and slower "
                "(%s). Leave recording out with cuda_graphs=False, or --no-cuda-graphs.",
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            )
            return None
        self.recorder.recordings += 1
        self._made[shape] = made
        return made

    def clear(self) -> None:
        """Drop all."""
        self._made.clear()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is freed in here by a collection of garbage, which may be what must not happen while recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
