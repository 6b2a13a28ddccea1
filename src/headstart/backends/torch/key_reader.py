"""Decoders that read another model's keys and values, by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from headstart.backends.torch.attention import AttentionLayout
from headstart.backends.torch.decoder import Decoder
from headstart.backends.torch.mixers import sights_of
from headstart.backends.torch.states import LayerStore
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import FINAL_TAP, IntArray, KVStorage, rows_at_ends


class _Layered(Protocol):
    """Storage that PyTorch's backend allocated."""

    layers: Sequence[LayerStore]


class TorchKeyReader:
    """See ``KeyReader``.

    Args:
        dtype: of weights, and of the keys and values.
    """

    @torch.inference_mode()
    def __init__(self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._decoder = Decoder(config, weights, dtype, device)

    @property
    def nbytes(self) -> int:
        """Of its weights."""
        return self._decoder.nbytes

    @torch.inference_mode()
    def read(
        self, inputs: Tensor, cached_lengths: IntArray, block_tables: IntArray, storage: KVStorage, *, says: bool
    ) -> tuple[Tensor, Tensor]:
        """See ``KeyReader``."""
        config, device = self._config, self._device
        batch = rows_at_ends(cached_lengths, block_tables, says)
        sights = sights_of(config, config.layers)
        layout = AttentionLayout(batch, storage.block_size, sights, self._dtype, device, config.attention.alibi)
        shared = self._decoder.at(torch.from_numpy(np.ascontiguousarray(cached_lengths)).to(device), layout)
        rows, none = (torch.arange(count, device=device) for count in (len(batch.logit_rows), 0))
        stores = cast(_Layered, storage).layers
        read = [stores[layer.reads] for layer in config.layers if layer.reads is not None]
        shown = self._decoder.run(inputs.to(device, self._dtype), read, shared, (FINAL_TAP,), rows, none)
        return shown.states[FINAL_TAP].float(), shown.logits
