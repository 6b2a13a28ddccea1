"""A P-EAGLE head by PyTorch: an EAGLE head's pass, with rows of masks behind the true ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.eagle_pass import EaglePass
from headstart.heads.eagle import EagleHead
from headstart.heads.head_pass import DraftRows
from headstart.heads.tables import TargetTables
from headstart.passes import IntArray


class MaskedPass(EaglePass):
    """Runs a head that guesses several tokens at once (``MaskedHeadPass``). Arguments as of ``EaglePass``."""

    @torch.inference_mode()
    def __init__(
        self, head: EagleHead, tables: TargetTables, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(head, tables, dtype, device)
        self._mask = self.fuse(head.mask_hidden.detach().flatten(1).to(self.device))

    def growth(self, width: int, ids: IntArray) -> None:
        """Depth by depth."""

    @torch.inference_mode()
    def guess(
        self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows], slots: int
    ) -> tuple[Tensor, Tensor]:
        """See ``MaskedHeadPass``."""
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


def behind(tokens: IntArray, counts: Sequence[int], mask: int, masks: int) -> IntArray:
    """Tokens [row], so many of each group, with ``masks`` mask tokens behind each group's."""
    own = np.full(masks, mask, dtype=np.int32)
    return np.concatenate([np.concatenate((part, own)) for part in np.split(tokens, np.cumsum(counts)[:-1])])
