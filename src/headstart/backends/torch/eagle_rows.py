"""The true rows that an EAGLE head reads before it guesses, in a grid whose tables always stand in the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.draft_pool import BLOCK, PooledDraftCache
from headstart.backends.torch.staging import Staging
from headstart.backends.torch.static_layout import LayoutTables, StaticLayout
from headstart.drafting.heads.head_pass import DraftCache
from headstart.models.config import EVERYTHING
from headstart.passes.batch import IntArray

if TYPE_CHECKING:
    from headstart.backends.torch.eagle_pass import EaglePass


class EagleRows:
    """Rows of several sequences, as many of each, those that are missing padded (``StaticLayout``).

    Args:
        running: the head's pass.
        sequences: in the grid.
        rows: of each sequence.
        keys: of each sequence at most, those of its rows included.
        features: numbers of a row's features.
        more: shapes of further tables.
    """

    def __init__(
        self,
        running: EaglePass,
        sequences: int,
        rows: int,
        keys: int,
        features: int,
        more: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._running, self._keys = running, keys
        self.sequences, self.rows = sequences, rows
        device, one = running.device, (sequences,)
        own = {"tokens": (sequences, rows), "places": (sequences, rows), "members": one}
        own |= {"firsts": one, "cached": one, "counts": one}
        self.staging = Staging({**own, "blocks": (sequences, -(-keys // BLOCK)), **more}, device)
        self.tables = self.staging.device
        count = sequences * rows
        self._host_features = torch.zeros(count, features, pin_memory=device.type == "cuda")
        self._features = torch.zeros(count, features, device=device)

    def fill(
        self,
        caches: Sequence[DraftCache],
        tokens: Sequence[IntArray],
        features: Sequence[NDArray[np.float32]],
        masks: int = 0,
    ) -> None:
        """Write what the rows read; afterwards ``staging.send``.

        Args:
            caches: of the sequences, with room for their rows.
            tokens: of each sequence, those of its masks included.
            features: of each sequence's rows, but its masks.
            masks: rows behind the true ones that read the state of a mask.
        """
        self.staging.begin()
        tables = self.staging.host
        counts = np.array([len(own) for own in tokens])
        firsts = np.cumsum(counts - masks) - (counts - masks)
        members = tables["members"]
        members[:] = np.minimum(np.arange(self.sequences), len(tokens) - 1)
        own = counts[members]
        row = np.minimum(np.arange(self.rows), own[:, None] - 1)
        tables["places"][:] = np.where(row < own[:, None] - masks, firsts[members][:, None] + row, len(self._features))
        starts = np.cumsum(counts) - counts
        tables["tokens"][:] = np.concatenate(tokens)[starts[members][:, None] + row]
        tables["cached"][:], tables["counts"][:] = [caches[member].rows for member in members], own
        tables["firsts"][:] = [caches[member].first for member in members]
        for place, member in enumerate(members):
            cache = caches[member]
            assert isinstance(cache, PooledDraftCache)
            blocks = cache.blocks[: tables["blocks"].shape[1]]
            tables["blocks"][place, : len(blocks)] = blocks
        total = int((counts - masks).sum())
        np.concatenate(features, out=self._host_features.numpy()[:total])
        self._features[:total].copy_(self._host_features[:total], non_blocking=True)

    def run(self, mask: Tensor | None = None) -> Tensor:
        """The last layer's output [sequence * row, hidden]; ``mask``: [1, hidden] the state that masks read."""
        running, tables = self._running, self.tables
        device = running.device
        local = torch.minimum(torch.arange(self.rows, device=device), tables["counts"][:, None] - 1)
        positions = (tables["firsts"] + tables["cached"])[:, None] + local
        sees = torch.ones(self.rows, self.rows, dtype=torch.bool, device=device).tril()
        layout = self.layout(tables["cached"], tables["counts"], sees.expand(self.sequences, -1, -1))
        states = running.fuse(self._features)
        states = states if mask is None else torch.cat((states, mask))
        states = states.index_select(0, tables["places"].flatten())
        return running.rows(tables["tokens"].flatten(), states, positions.flatten(), {EVERYTHING: layout})

    def last(self, count: int) -> Tensor:
        """[sequence * count] the last rows of each sequence that are no padding, in its output."""
        device = self._running.device
        ends = torch.arange(self.sequences, device=device) * self.rows + self.tables["counts"]
        return (ends[:, None] + torch.arange(-count, 0, device=device)).flatten()

    def layout(self, cached: Tensor, counts: Tensor, sees: Tensor) -> StaticLayout:
        """That of rows of these sequences; arguments as of ``LayoutTables``."""
        config = self._running.config
        # Nobody asks how far keys are apart.
        positions = cached[:, None].expand(-1, sees.shape[2])
        return StaticLayout(
            LayoutTables(cached, counts, positions, sees, self.tables["blocks"]),
            self._keys,
            BLOCK,
            {EVERYTHING: config.num_heads // config.num_kv_heads},
            self._running.dtype,
        )
