"""Output rows of texts' tokens, kept on a device from draft to draft."""

from __future__ import annotations

import weakref
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.draft_pool import BLOCK, DraftPool
from headstart.drafting.heads.text_vocabulary import TextTokens

_BLOCKS = 64
"""There are at first."""


class TextRows:
    """The rows of ``TextTokens``, as long as those are there.

    Args:
        hidden_size: of a row.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._pool = DraftPool([(hidden_size,)], dtype, device, _BLOCKS)
        self._kept: WeakKeyDictionary[TextTokens, _Kept] = WeakKeyDictionary()

    @property
    def table(self) -> Tensor:
        """[slot, hidden]."""
        return self._pool.tensors[0]

    @property
    def moves(self) -> int:
        """How often the table was replaced."""
        return self._pool.moves

    def slots(self, text: TextTokens) -> NDArray[np.int64]:
        """[token] slots of the rows; those that are new are copied."""
        kept = self._kept.get(text)
        if kept is None:
            kept = self._kept[text] = _Kept()
            weakref.finalize(text, self._pool.give_back, kept.blocks)
        blocks = kept.blocks
        while len(blocks) * BLOCK < len(text):
            blocks.append(self._pool.take(blocks[-1] if blocks else None))
        rows = np.arange(len(text))
        slots: NDArray[np.int64] = np.asarray(blocks, dtype=np.int64)[rows // BLOCK] * BLOCK + rows % BLOCK
        if kept.count < len(text):
            new = self._pool.index(slots[kept.count :])
            self.table[new] = text.rows[kept.count :].to(self.table.device, self.table.dtype)
            kept.count = len(text)
        return slots


class _Kept:
    """What is kept of one text."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.count = 0
        """Tokens whose rows are there."""
