"""Decoders that read another model's keys and values, on the native library."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headstart.passes.batch import FINAL_TAP, IntArray, KVStorage, RowInputs, rows_at_ends

if TYPE_CHECKING:
    from headstart.backends.native.backend import NativeBackend


class NativeKeyReader:
    """See ``KeyReader``.

    Args:
        decoder: takes the other model's caches; its rotations are one position ahead.
    """

    def __init__(self, decoder: NativeBackend) -> None:
        self._decoder = decoder

    @property
    def nbytes(self) -> int:
        """Of its weights."""
        return self._decoder.nbytes

    def read(
        self, inputs: Tensor, cached_lengths: IntArray, block_tables: IntArray, storage: KVStorage, *, says: bool
    ) -> tuple[Tensor, Tensor]:
        """See ``KeyReader``."""
        batch = rows_at_ends(cached_lengths, block_tables, says)
        batch = replace(batch, inputs=RowInputs(np.arange(len(inputs), dtype=np.int32), inputs))
        output = self._decoder.forward(batch, storage)
        return torch.from_numpy(output.hidden[FINAL_TAP]), output.logits
