"""What the target shows while it reads the training text: computed on the fly, kept in memory up to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headstart.models.backend import FINAL_TAP, Backend
from headstart.runner import BLOCK_SIZE, ModelRunner, Span
from headstart.training.corpus import Pack


@dataclass(frozen=True)
class Batch:
    """Packs padded to one length; axes [pack, position]."""

    tokens: Tensor
    """int64 ids, 0 in padding."""
    positions: Tensor
    """int64 place within its document."""
    documents: Tensor
    """int64 number of the document, different in all packs; -1 in padding."""
    answers: Tensor
    """bool whether the target said the token."""
    features: Tensor
    """float32 [..., taps * hidden]."""
    final: Tensor
    """float32 [..., hidden] states after the final norm."""

    def said_ahead(self, distance: int) -> Tensor:
        """bool: whether the token so many places on is in the same document, and the target said it."""
        documents = shift(self.documents, distance, -2)
        return (documents == self.documents) & shift(self.answers, distance, False)


def shift(values: Tensor, distance: int, fill: int | bool) -> Tensor:
    """values[:, i + distance] at place i, ``fill`` beyond the end."""
    shifted = torch.full_like(values, fill)
    if distance < values.shape[1]:
        shifted[:, : values.shape[1] - distance] = values[:, distance:]
    return shifted


class TargetStates:
    """Runs the target over packs.

    A pack always rides alone and is rounded to bfloat16 whether it is kept or not, so its states are the same in
    every epoch, with any limit, and after a restart.

    Args:
        backend: the target.
        taps: layers whose inputs a head reads.
        cache_bytes: states kept in memory at most.
        device: where batches go.
    """

    def __init__(
        self, backend: Backend, taps: Sequence[int], cache_bytes: int, device: torch.device | str = "cpu"
    ) -> None:
        self._runner = ModelRunner(backend, BLOCK_SIZE)
        self._taps = tuple(taps)
        self._wanted = tuple(dict.fromkeys((*taps, FINAL_TAP)))
        self._room = cache_bytes
        self._kept: dict[Pack, Tensor] = {}
        self._device = torch.device(device)

    def batch(self, packs: Sequence[Pack]) -> Batch:
        """Packs with the target's states."""
        length = max(len(pack) for pack in packs)
        shape = (len(packs), length)
        tokens, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        documents, answers = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        count = 0
        for row, pack in enumerate(packs):
            first = 0
            for document in pack.documents:
                place = slice(first, first + len(document.tokens))
                tokens[row, place], answers[row, place] = document.tokens, document.answers
                positions[row, place], documents[row, place] = np.arange(len(document.tokens)), count
                first, count = place.stop, count + 1
        states = torch.nn.utils.rnn.pad_sequence([self._states(pack).float() for pack in packs], batch_first=True)
        parts = dict(zip(self._wanted, states.to(self._device).chunk(len(self._wanted), dim=-1), strict=True))
        tables = {"tokens": tokens, "positions": positions, "documents": documents, "answers": answers}
        return Batch(
            features=torch.cat([parts[tap] for tap in self._taps], dim=-1),
            final=parts[FINAL_TAP],
            **{name: torch.from_numpy(table).to(self._device) for name, table in tables.items()},
        )

    def _states(self, pack: Pack) -> Tensor:
        """bfloat16 [token, wanted * hidden]."""
        known = self._kept.get(pack)
        if known is not None:
            return known
        # Each document of a pack begins a block of its own.
        blocks = sum(-(-len(document.tokens) // BLOCK_SIZE) for document in pack.documents)
        if blocks > self._runner.cache.allocator.num_blocks:
            self._runner = ModelRunner(self._runner.backend, blocks * BLOCK_SIZE)
        cache = self._runner.cache
        spans = [Span.chain(i, document.tokens.tolist(), "none") for i, document in enumerate(pack.documents)]
        for span in spans:
            cache.add(span.sequence_id)
        try:
            with cache.reserve({span.sequence_id: len(span) for span in spans}):
                outputs = self._runner.forward(spans, self._wanted)
        finally:
            for span in spans:
                cache.remove(span.sequence_id)
        states = torch.cat([torch.cat([output.hidden[tap] for tap in self._wanted], dim=-1) for output in outputs])
        states = states.to(torch.bfloat16).clone()
        if states.nbytes <= self._room:
            self._room -= states.nbytes
            self._kept[pack] = states
        return states
