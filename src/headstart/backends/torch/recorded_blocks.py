"""A block head's reading and its blocks, recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.draft_pool import BLOCK, DraftPool, PooledDraftCache
from headstart.backends.torch.recorder import Recorder, Recordings, Run
from headstart.backends.torch.staging import Staging
from headstart.backends.torch.static_layout import LayoutTables, StaticLayout, padded
from headstart.passes.batch import IntArray

if TYPE_CHECKING:
    from headstart.backends.torch.attention import Layout
    from headstart.backends.torch.block_pass import BlockPass, View

_FEWEST_ROWS, _MOST_ROWS = 8, 64
"""Of a reading. Prompts bring more, which keep a device busy."""
_FEWEST_KEYS = 128


class RecordedBlocks:
    """What is recorded of one head.

    Args:
        running: the head's pass.
        pool: its rows.
        recorder: of its device.
    """

    def __init__(self, running: BlockPass, pool: DraftPool, recorder: Recorder) -> None:
        self._running, self._pool = running, pool
        self._readings: Recordings[_Reading] = Recordings(recorder)
        self._blocks: Recordings[_Block] = Recordings(recorder)

    def read(self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]) -> bool:
        """Keep rows [row], see ``BlockPass.keep``; False: that is to be done otherwise."""
        if len(positions) > _MOST_ROWS:
            return False
        rows = padded(len(positions), _FEWEST_ROWS)
        self._readings.of_memory(self._pool.moves)

        def recording() -> _Reading:
            made = _Reading(rows, features.shape[1], self._running)
            made.fill(features, positions, slots)
            made.replay = self._readings.recorder.record(made.run)
            return made

        reading = self._readings.of(rows, recording)
        if reading is None:
            return False
        reading.fill(features, positions, slots)
        reading.replay()
        return True

    def block(self, roots: IntArray, caches: Sequence[PooledDraftCache], slots: int) -> tuple[Tensor, Tensor] | None:
        """See ``BlockHeadPass.block``; None: it is to be run otherwise."""
        sequences = padded(len(caches))
        keys = padded(max(cache.rows for cache in caches) + self._running.config.block_size, _FEWEST_KEYS)
        self._blocks.of_memory(self._pool.moves)

        def recording() -> _Block:
            made = _Block(sequences, keys, slots, self._running)
            made.fill(roots, caches)
            made.replay = self._blocks.recorder.record(made.run)
            return made

        block = self._blocks.of((sequences, keys, slots), recording)
        if block is None:
            return None
        block.fill(roots, caches)
        states, logits = block.replay()
        return states[: len(caches)].clone(), logits[: len(caches)].clone()


class _Reading:
    """Rows of any sequences, the last of them repeated."""

    replay: Run

    def __init__(self, rows: int, features: int, running: BlockPass) -> None:
        device = running.device
        self._running = running
        self._staging = Staging({"positions": (rows,), "slots": (rows,)}, device)
        self._host_features = torch.zeros(rows, features, pin_memory=device.type == "cuda")
        self._features = torch.zeros(rows, features, device=device)

    def fill(self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Write what is read."""
        self._staging.begin()
        count = len(positions)
        for name, values in (("positions", positions), ("slots", slots)):
            table = self._staging.host[name]
            table[:count], table[count:] = values, values[-1]
        self._host_features[:count], self._host_features[count:] = features, features[-1]
        self._features.copy_(self._host_features, non_blocking=True)
        self._staging.send()

    def run(self) -> Sequence[Tensor]:
        """Keep the rows."""
        tables = self._staging.device
        self._running.keep(self._features.to(self._running.dtype), tables["positions"], tables["slots"])
        return ()


class _Block:
    """One block of each sequence, that of the last one repeated."""

    replay: Run

    def __init__(self, sequences: int, keys: int, slots: int, running: BlockPass) -> None:
        self._running, self._keys, self._slots = running, keys, slots
        one = (sequences,)
        tables = {"roots": one, "firsts": one, "cached": one, "blocks": (sequences, -(-keys // BLOCK))}
        self._staging = Staging(tables, running.device)

    def fill(self, roots: IntArray, caches: Sequence[PooledDraftCache]) -> None:
        """Write what the blocks read."""
        self._staging.begin()
        tables = self._staging.host
        members = np.minimum(np.arange(len(tables["roots"])), len(caches) - 1)
        tables["roots"][:], tables["cached"][:] = roots[members], [caches[member].rows for member in members]
        tables["firsts"][:] = [caches[member].first for member in members]
        for place, member in enumerate(members.tolist()):
            blocks = caches[member].blocks[: tables["blocks"].shape[1]]
            tables["blocks"][place, : len(blocks)] = blocks
        self._staging.send()

    def run(self) -> Sequence[Tensor]:
        """States and logits [sequence, slot, ...]."""
        running, config, tables = self._running, self._running.config, self._staging.device
        size, device = config.block_size, running.device
        roots, cached = tables["roots"][:, None], tables["cached"]
        masks = torch.full((len(roots), size - 1), config.mask_token_id, dtype=torch.int64, device=device)
        places = cached[:, None] + torch.arange(size, device=device)
        counts, everyone = torch.full_like(cached, size), torch.ones(size, size, dtype=torch.bool, device=device)
        layouts: dict[View, Layout] = {}
        for sight, looks_back in running.views:
            sees = (everyone.tril() if looks_back else everyone).expand(len(roots), -1, -1)
            layouts[sight, looks_back] = StaticLayout(
                LayoutTables(cached, counts, places, sees, tables["blocks"]),
                self._keys,
                BLOCK,
                {sight: config.num_heads // config.num_kv_heads},
                running.dtype,
            )
        positions = tables["firsts"][:, None] + places
        return running.say(torch.cat((roots, masks), dim=1), positions, layouts, self._slots)
