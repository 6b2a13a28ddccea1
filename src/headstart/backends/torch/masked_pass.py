"""A P-EAGLE head by PyTorch: an EAGLE head's pass, with rows of masks behind the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.draft_pool import PooledDraftCache
from headstart.backends.torch.eagle_growth import FEWEST_KEYS, FEWEST_ROWS
from headstart.backends.torch.eagle_pass import EaglePass
from headstart.backends.torch.eagle_rows import EagleRows
from headstart.backends.torch.head_kit import Kit
from headstart.backends.torch.recorder import Recorder, Recordings, Run
from headstart.backends.torch.static_layout import coarsely_padded, padded
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.passes.batch import IntArray


class MaskedPass(EaglePass):
    """Runs a head that guesses several tokens at once (``MaskedHeadPass``). Arguments as of ``EaglePass``."""

    @torch.inference_mode()
    def __init__(
        self,
        head: EagleHead,
        tables: TargetTables,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(head, tables, dtype, device, recorder)
        recorder = self._recorder
        self._recordings: Recordings[_RecordedGuess] | None = None if recorder is None else Recordings(recorder)
        self._mask = self.fuse(head.mask_hidden.detach().flatten(1).to(self.device))

    def growth(self, width: int, ids: IntArray) -> None:
        """Depth by depth."""

    @torch.inference_mode()
    def guess(
        self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows], slots: int
    ) -> tuple[Tensor, Tensor]:
        """See ``MaskedHeadPass``."""
        recorded = self._recorded(tokens, features, groups, slots)
        if recorded is not None:
            return recorded
        masks = slots - 1
        counts = [group.count for group in groups]
        ends = np.cumsum(counts)
        read, mask_states = behind(tokens, counts, self.config.mask_token_id, masks), self._mask.expand(masks, -1)
        states = torch.cat([torch.cat((part, mask_states)) for part in torch.split(self.fuse(features), counts)])
        output = self._run(read, states, [DraftRows(group.cache, group.count + masks) for group in groups])
        for group in groups:
            group.cache.truncate(group.cache.rows - masks)
        # The last true row of each group, and its masks.
        saying = torch.from_numpy((ends + masks * np.arange(1, len(groups) + 1) - slots)[:, None] + np.arange(slots))
        said, logits = self.say(F.embedding(saying.flatten().to(self.device), output))
        return said.view(len(groups), slots, -1), logits.view(len(groups), slots, -1)

    def _recorded(
        self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows], slots: int
    ) -> tuple[Tensor, Tensor] | None:
        """The same by a recording; None: there is none."""
        if self._recordings is None:
            return None
        masks = slots - 1
        counts = [group.count for group in groups]
        caches = [group.cache for group in groups]
        reach = [cache.rows + count + masks for cache, count in zip(caches, counts, strict=True)]
        for cache, rows in zip(caches, reach, strict=True):
            assert isinstance(cache, PooledDraftCache)
            cache.reserve(rows)
        self._recordings.of_memory(self.pool.moves)
        read = behind(tokens, counts, self.config.mask_token_id, masks)
        of_groups = np.split(read, np.cumsum([count + masks for count in counts])[:-1])
        states = np.split(features.numpy(), np.cumsum(counts)[:-1])
        grid = (padded(len(groups)), coarsely_padded(max(counts) + masks, FEWEST_ROWS), padded(max(reach), FEWEST_KEYS))

        def recording() -> _RecordedGuess:
            rows = EagleRows(self, *grid, features.shape[1], {})
            rows.fill(caches, of_groups, states, masks)
            rows.staging.send()
            return _RecordedGuess(rows, recorder.record(lambda: self._said(rows, slots)))

        recorder = self._recordings.recorder
        guess = self._recordings.of((*grid, slots), recording)
        if guess is None:
            return None
        guess.rows.fill(caches, of_groups, states, masks)
        guess.rows.staging.send()
        said, logits = (each.view(grid[0], slots, -1)[: len(groups)].clone() for each in guess.replay())
        for cache, count in zip(caches, counts, strict=True):
            cache.rows += count
        return said, logits

    def _said(self, rows: EagleRows, slots: int) -> tuple[Tensor, Tensor]:
        """What the last true row of each sequence and its masks say."""
        return self.say(rows.run(self._mask).index_select(0, rows.last(slots)))


class _RecordedGuess(NamedTuple):
    """A recording, and what it reads."""

    rows: EagleRows
    replay: Run


def behind(tokens: IntArray, counts: Sequence[int], mask: int, masks: int) -> IntArray:
    """Tokens [row], so many of each group, with ``masks`` mask tokens behind each group's."""
    own = np.full(masks, mask, dtype=np.int32)
    return np.concatenate([np.concatenate((part, own)) for part in np.split(tokens, np.cumsum(counts)[:-1])])


def masked_pass(head: EagleHead, tables: TargetTables, kit: Kit) -> MaskedPass:
    """As ``HeadPasses.torch`` has it."""
    return MaskedPass(head, tables, kit.dtype, kit.device, kit.recorder)
