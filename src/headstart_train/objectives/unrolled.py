"""A head that is unrolled on its own states, as drafting will do, over the documents of a batch at once.

EAGLE-3's training-time test (arXiv:2503.01840, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.objectives.unrolled_attention import ByDocument, ByPack, UnrolledAttention
from headstart_train.states import Batch, shift


class UnrolledHead(Protocol):
    """Decoder layers that read a token beside a state, and make the state that they go on from."""

    @property
    def layers(self) -> Sized:
        """That attend."""
        ...

    def fuse(self, features: Tensor) -> Tensor:
        """What the first step reads: of the target's states."""
        ...

    def feed_back(self, output: Tensor) -> Tensor:
        """What the next step reads: of an output."""
        ...

    @property
    def __call__(self) -> Callable[..., Tensor]:
        """[row, hidden] of a step, of embeddings and states of that shape, what rotates heads, and what attends:
        layer, queries, keys, values -> [row, head * head_dim]."""
        ...


class Unrolled:
    """Steps of the head over the documents of a batch, one behind the other: axis [row].

    At step j, row i stands for the j-th row of a draft that begins after the true rows up to i: it reads the token
    1 + j places on, at position i + j, beside the state that step j - 1 left at i; it sees the true rows up to i of
    its own document, and the earlier steps at i. The first step computes all rows, as all are seen; the others only
    those at ``places``.

    Args:
        mask: what a masked step reads in place of a token and a state: its id, and features.
        windows: [layer] how many positions its rows see, their own included, more than there are steps; 0: all. Empty:
            all layers see all.

    Attributes:
        places: bool [pack, position] where a draft may begin.
    """

    def __init__(
        self,
        head: UnrolledHead,
        embedding: Tensor,
        rotary: RotaryTable,
        batch: Batch,
        dropout: float = 0.0,
        mask: tuple[int, Tensor] | None = None,
        windows: Sequence[int] = (),
    ) -> None:
        self._head, self._embedding, self._rotary, self._batch = head, embedding, rotary, batch
        self._dropout, self._mask = dropout, mask
        self._rows = batch.documents >= 0
        self.places = batch.guessed(0)
        windows, on_processor = windows or (0,) * len(head.layers), batch.tokens.device.type == "cpu"
        self._attention: UnrolledAttention = (ByDocument if on_processor else ByPack)(batch, windows)
        self._attention.choose(self.places)
        self._chosen = self.places[self._rows].nonzero().squeeze(1)
        self._states = head.fuse(F.dropout(batch.features[self._rows], dropout))
        self._step = 0

    def drop(self, kept: float) -> float:
        """Go on, after the first step, at about this share of the places; the share that it was."""
        stays = torch.rand(len(self._chosen), device=self._chosen.device) < kept
        if not stays.any():
            return 1.0
        before, chosen = len(self._chosen), self._chosen[stays]
        begins = torch.zeros(int(self._rows.sum()), dtype=torch.bool, device=stays.device)
        begins[chosen] = True
        self.places = self.places.clone()
        self.places[self._rows] = begins
        self._states, self._chosen = self._states[stays], chosen
        self._attention.keep(stays, self.places)
        return len(chosen) / before

    def step(self, masked: bool = False) -> Tensor:
        """The next step's output at ``places``: [place, hidden]. The first step is never ``masked``."""
        tokens = shift(self._batch.tokens, 1 + self._step, 0)[self._rows]
        positions = self._batch.positions[self._rows] + self._step
        first = self._step == 0
        if not first:
            tokens, positions = tokens[self._chosen], positions[self._chosen]
            if masked:
                assert self._mask is not None
                tokens = torch.full_like(tokens, self._mask[0])
                self._states = self._head.fuse(self._mask[1]).expand(len(tokens), -1)
        embeddings = F.dropout(F.embedding(tokens, self._embedding).float(), self._dropout)
        reach = self._batch.tokens.shape[1] + self._step + 1
        rotate = partial(self._rotary.rotate, positions=positions, reach=reach)
        output: Tensor = self._head(embeddings, self._states, rotate, self._attend)
        if first:
            output = output[self._chosen]
        self._states = self._head.feed_back(output)
        self._step += 1
        return output

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [row, head, head_dim], k and v [row, kv_head, head_dim], see the class."""
        attend = self._attention.further if self._step else self._attention.first
        return attend(layer, q, k, v).flatten(1)
