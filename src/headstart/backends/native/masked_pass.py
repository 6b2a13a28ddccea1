"""A P-EAGLE head on the native library: true rows and masks in one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.growth import NativeGrowth, OnePass
from headstart.backends.native.heads import NativeEaglePass
from headstart.backends.native.packing import as_float32
from headstart.backends.native.precision import Precision
from headstart.backends.torch.masked_pass import behind
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.passes.batch import IntArray


class NativeMaskedPass(NativeEaglePass):
    """Runs a head that guesses several tokens at once (``MaskedHeadPass``). Arguments as of ``NativeEaglePass``.

    Masks go through the same fusion as true rows: it is a ninth of a mask's products, and the matrix is read anyway.
    """

    def __init__(
        self,
        head: EagleHead,
        tables: TargetTables,
        precision: Precision = "bf16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        super().__init__(head, tables, precision, threads, isa)
        slots, self._mask_features = self.config.slots, as_float32(head.mask_hidden.detach().flatten())
        self._masks = OnePass(slots, slots - 1, self.config.mask_token_id, self._mask_features)

    def guess(
        self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows], slots: int
    ) -> tuple[Tensor, Tensor]:
        """See ``MaskedHeadPass``."""
        masks, counts = slots - 1, [group.count for group in groups]
        read = behind(tokens, counts, self._masks.mask_token, masks)
        mask_features = self._mask_features.expand(masks, -1)
        inputs = torch.cat([torch.cat((part, mask_features)) for part in torch.split(features.cpu(), counts)])
        ends = np.cumsum([count + masks for count in counts])
        wanted = (ends[:, None] - slots + np.arange(slots)).ravel().astype(np.int32)
        with_masks = [DraftRows(group.cache, group.count + masks) for group in groups]
        states, logits = self._run(read, inputs, with_masks, wanted, true=True)
        for group in groups:
            group.cache.truncate(group.cache.rows - masks)
        shape = (len(groups), slots, -1)
        return states[torch.from_numpy(wanted).long()].view(shape), logits.view(shape)

    def growth(self, width: int, ids: IntArray) -> NativeGrowth:
        """See ``MaskedHeadPass``."""
        return self._growth(width, ids, int(self._state_tap[0]), self._masks)
