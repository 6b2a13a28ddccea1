"""What the target shows while it reads the training text, computed anew for each batch on the device of the training:
there that takes less time than fetching what was kept."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import FINAL_TAP
from headstart_train.decoder.trainable import TrainableDecoder, attend_masked
from headstart_train.objectives.masks import Rows, sees_text
from headstart_train.states import Batch, padded
from headstart_train.text.packs import Pack

_ROWS = 8192
"""States whose logits are held at a time."""


class ComputedStates:
    """A ``StateSource`` that keeps nothing.

    Args:
        config: the target's, of a kind that ``backends.torch.trainable.require_trainable`` takes.
        weights: the target's.
        head: [vocab, hidden] its language model head, on the device.
        taps: layers whose inputs a head reads.
        device: where the target runs, its products in bfloat16, and where batches are.
    """

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, head: Tensor, taps: Sequence[int], device: torch.device
    ) -> None:
        self._decoder = TrainableDecoder(config, weights, frozen=True, device=device).to(torch.bfloat16)
        self._head = head
        self._taps = tuple(taps)
        self._device = device
        self.computing_seconds = 0.0

    def keeps(self, packs: Sequence[Pack]) -> bool:
        return False

    @torch.no_grad()
    def batch(self, packs: Sequence[Pack]) -> Batch:
        began = time.perf_counter()
        text = padded(packs, self._device)
        unknown = torch.zeros(0, device=self._device)
        batch = Batch(**text, features=unknown, final=unknown, favourites=unknown)
        rows = Rows.of_text(batch)
        # Padding sees all padding before it, so that every row sees something.
        sees = {window: sees_text(rows, batch, window) for window in {layer.window for layer in self._config.layers}}
        taps = dict.fromkeys(self._taps, unknown)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_masked(q, k, v, sees[self._config.layers[index].window], self._config)

        with torch.autocast(self._device.type, torch.bfloat16):
            inputs = self._decoder.embed(batch.tokens)
            final = self._decoder(inputs, batch.positions, attend, batch.tokens.shape[1], taps).float()
        taps[FINAL_TAP] = final
        features = torch.cat([taps[tap].float() for tap in self._taps], dim=-1)
        found = Batch(**text, features=features, final=final, favourites=self._favourites(batch, final))
        self.computing_seconds += time.perf_counter() - began
        return found

    @property
    def _config(self) -> ModelConfig:
        return self._decoder.config

    def _favourites(self, batch: Batch, final: Tensor) -> Tensor:
        """See ``Batch.favourites``."""
        says = batch.said_ahead(1)
        states = final[says].to(self._head.dtype)
        best = [F.linear(rows, self._head).argmax(-1) for rows in torch.split(states, _ROWS)]
        favourites = torch.full_like(batch.tokens, -1)
        if best:
            favourites[says] = torch.cat(best)
        return favourites
