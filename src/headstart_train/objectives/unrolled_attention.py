"""Attention of a head that is unrolled over the documents of a batch (``unrolled``), in two ways that compute the same.

Rows come without packs, [row, head, head_dim]: all true rows at the first step, those of the chosen places afterwards.
Layers may have windows, [layer] how many positions their rows see, their own included; 0: all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart_train.objectives.masks import Behind, Rows, sees_text
from headstart_train.states import Batch


class UnrolledAttention(Protocol):
    """Keys and values of all steps so far, layer by layer."""

    def choose(self, places: Tensor) -> None:
        """The rows of steps after the first: bool [pack, position]."""
        ...

    def keep(self, stays: Tensor, places: Tensor) -> None:
        """Go on with some of them, bool [row], which are ``places``."""
        ...

    def first(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each true row sees those of its document up to itself: -> [row, head, head_dim]."""
        ...

    def further(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each chosen row sees the true rows of its document up to its place, and the steps there: -> the same."""
        ...


class ByDocument:
    """Document by document, so that what nobody sees is never computed: for processors."""

    def __init__(self, batch: Batch, windows: Sequence[int]) -> None:
        self._windows = windows
        self._rows = batch.documents >= 0
        numbers = batch.documents[self._rows]
        last = torch.ones_like(numbers, dtype=torch.bool)
        last[:-1] = numbers[1:] != numbers[:-1]
        self._ends = (1 + last.nonzero().squeeze(1)).tolist()
        self._documents = [slice(first, end) for first, end in pairwise((0, *self._ends))]
        self._seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in windows]
        """[layer][step] keys and values [head, row, head_dim]: the first step's are the true rows'."""

    def choose(self, places: Tensor) -> None:
        begins = places[self._rows]
        self._chosen = begins.nonzero().squeeze(1)
        chosen_ends = begins.cumsum(0)[[end - 1 for end in self._ends]].tolist()
        self._chosen_of = [slice(first, end) for first, end in pairwise((0, *chosen_ends))]

    def keep(self, stays: Tensor, places: Tensor) -> None:
        self._seen = [
            [true, *((keys[:, stays], values[:, stays]) for keys, values in drafts)] for true, *drafts in self._seen
        ]
        self.choose(places)

    def first(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = _by_head(q, k, v)
        self._seen[layer].append((k, v))
        mixed = [self._mix_true(q, k, v, rows, self._windows[layer]) for rows in self._documents]
        return torch.cat(mixed, dim=1).transpose(0, 1)

    @staticmethod
    def _mix_true(q: Tensor, k: Tensor, v: Tensor, rows: slice, window: int) -> Tensor:
        """What the true rows of one document see."""
        q, k, v = (each[None, :, rows] for each in (q, k, v))
        length = rows.stop - rows.start
        if not 0 < window < length:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
        places = torch.arange(length, device=q.device)
        back = places[:, None] - places
        return F.scaled_dot_product_attention(q, k, v, (back >= 0) & (back < window))[0]

    def further(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = _by_head(q, k, v)
        self._seen[layer].append((k, v))
        mixed = [
            self._mix(self._seen[layer], q[:, rows], true_rows, rows, self._windows[layer])
            for true_rows, rows in zip(self._documents, self._chosen_of, strict=True)
        ]
        return torch.cat(mixed, dim=1).transpose(0, 1)

    def _mix(
        self, seen: Sequence[tuple[Tensor, Tensor]], q: Tensor, true_rows: slice, rows: slice, window: int
    ) -> Tensor:
        """What the rows of one document, q [head, row, head_dim], see in a step after the first."""
        true, *drafts = seen
        keys, values = (heads[:, true_rows] for heads in true)
        scale = q.shape[-1] ** -0.5
        place = self._chosen[rows, None] - true_rows.start
        back = place - torch.arange(keys.shape[1], device=q.device)
        hidden = back < 0
        if window:
            hidden |= back + len(drafts) >= window
        to_true = (q @ keys.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
        to_own = [(q * drafted[:, rows]).sum(-1, keepdim=True) * scale for drafted, _ in drafts]
        weights = torch.cat((to_true, *to_own), dim=-1).softmax(-1)
        length = keys.shape[1]
        mixed = weights[..., :length] @ values
        for step, (_, drafted) in enumerate(drafts):
            mixed = mixed + weights[..., length + step, None] * drafted[:, rows]
        return mixed


class ByPack:
    """All packs at once, what nobody sees masked: for accelerators, to which many small products are a waste."""

    def __init__(self, batch: Batch, windows: Sequence[int]) -> None:
        self._batch, self._windows = batch, windows
        self._rows = (batch.documents >= 0).nonzero(as_tuple=True)
        # Padding sees padding, so that every row sees something.
        self._sees = {window: sees_text(Rows.of_text(batch), batch, window or None) for window in windows}
        self._true: list[tuple[Tensor, Tensor]] = []
        """[layer] keys and values [pack, head, position, head_dim] of the true rows."""
        self._drafts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in windows]
        """[layer][step after the first] keys and values [row, head, head_dim]."""

    def choose(self, places: Tensor) -> None:
        behind = Behind.places(self._batch, places)
        positions = self._batch.positions
        length = positions.shape[1]
        self._shape = behind.index.shape
        index = behind.index[:, :, None].expand(-1, -1, length)
        self._hidden = {window: ~sees.gather(1, index)[:, None] for window, sees in self._sees.items()}
        """bool [pack, 1, place, position] the tokens of the text that are not seen at a place."""
        self._back = (positions.gather(1, behind.index)[:, :, None] - positions[:, None])[:, None]
        """[pack, 1, place, position] how far back they are."""
        among = torch.arange(self._shape[1], device=places.device) < places.sum(1)[:, None]
        self._chosen = among.nonzero(as_tuple=True)
        """Pack, and place in ``Behind.index``, of each chosen row."""

    def keep(self, stays: Tensor, places: Tensor) -> None:
        kept = stays.nonzero().squeeze(1)
        self._drafts = [[(keys[kept], values[kept]) for keys, values in drafts] for drafts in self._drafts]
        self.choose(places)

    def first(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        padded_q, keys, values = (self._padded(heads).transpose(1, 2) for heads in _whole(q, k, v))
        self._true.append((keys, values))
        mixed = F.scaled_dot_product_attention(padded_q, keys, values, self._sees[self._windows[layer]][:, None])
        return mixed.transpose(1, 2)[self._rows]

    def further(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = _whole(q, k, v)
        drafts = self._drafts[layer]
        drafts.append((k, v))
        keys, values = self._true[layer]
        scale, length = q.shape[-1] ** -0.5, keys.shape[2]
        to_true = self._among(q).transpose(1, 2) @ keys.transpose(2, 3) * scale
        to_own = torch.stack([(q * drafted).sum(-1) * scale for drafted, _ in drafts], dim=-1)
        window = self._windows[layer]
        hidden = self._hidden[window]
        if window:
            hidden = hidden | (self._back + len(drafts) >= window)
        scores = to_true.masked_fill(hidden, -torch.inf), self._among(to_own).transpose(1, 2).to(to_true.dtype)
        weights = torch.cat(scores, dim=-1).softmax(-1)
        mixed = (weights[..., :length] @ values).transpose(1, 2)[self._chosen]
        own = weights[..., length:].transpose(1, 2)[self._chosen]
        for step, (_, drafted) in enumerate(drafts):
            mixed = mixed + own[..., step, None] * drafted
        return mixed

    def _padded(self, heads: Tensor) -> Tensor:
        """[true row, ...] -> [pack, position, ...], zeros elsewhere."""
        shape = self._batch.documents.shape
        return heads.new_zeros(*shape, *heads.shape[1:]).index_put(self._rows, heads)

    def _among(self, heads: Tensor) -> Tensor:
        """[chosen row, ...] -> [pack, place, ...], zeros elsewhere."""
        return heads.new_zeros(*self._shape, *heads.shape[1:]).index_put(self._chosen, heads)


def _whole(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values for every query head."""
    shared = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(shared, dim=1), v.to(q.dtype).repeat_interleave(shared, dim=1)


def _by_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[head, row, head_dim] of all three, as many heads of each."""
    q, k, v = (heads.transpose(0, 1) for heads in _whole(q, k, v))
    return q, k, v
