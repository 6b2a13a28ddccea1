"""All rows of a pass in one call of a model whose attention goes through transformers' attention interface.

The rows of all sequences stand one after the other in one text, each with its own position. The model's attention
layers call ``paged_attention`` in place of their own function: it writes the rows' keys and values to the cache's
pages, and gives each sequence's rows, with the keys that they may see, to the function that the model would have used.
What a row may see beside that (windows, chunks) the model says in a mask function of positions.
(https://huggingface.co/docs/transformers/en/attention_interface)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from headstart.passes.batch import PassBatch
from headstart_integrations.transformers.calls import Called, Caller
from headstart_integrations.transformers.storage import PageShape, TransformersStorage, physical_slots

NAME = "headstart"
"""Of the attention function, in transformers' registry."""
Attention = Callable[..., tuple[Tensor, Any]]


class _Attending(Protocol):
    """What the model's layers meet while one call lasts."""

    def mask(self, mask_function: Callable[..., Tensor]) -> Tensor | None: ...

    def attend(
        self,
        inner: Attention,
        module: torch.nn.Module,
        heads: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        settings: dict[str, Any],
    ) -> tuple[Tensor, Any]: ...


_CURRENT: ContextVar[_Attending | None] = ContextVar("headstart_pass", default=None)


class UnfitError(Exception):
    """The model wants something of its attention that cannot be given to rows of several sequences."""


def register() -> None:
    """Make ``paged_attention`` known to transformers. Outside of a pass it is the model's own attention."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, _paged_mask)


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Any]:
    """What attention layers call: [1, head, row, dimension] each, as the interface has it."""
    inner = _own_attention(module, settings)
    current = _CURRENT.get()
    if current is None:
        return inner(module, query, key, value, attention_mask, **settings)
    return current.attend(inner, module, (query, key, value), attention_mask, settings)


def _paged_mask(*args: Any, **settings: Any) -> Tensor | None:
    current = _CURRENT.get()
    made = None if current is None else current.mask(settings["mask_function"])
    return sdpa_mask(*args, **{**settings, "allow_is_causal_skip": False}) if made is None else made


def _own_attention(module: torch.nn.Module, settings: dict[str, Any]) -> Attention:
    """The model's own function, where its file has one: it knows of soft caps, sinks and biases."""
    own: Attention | None = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        raise UnfitError("its attention is not a function of its own")

    def eager(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any
    ) -> tuple[Tensor, Any]:
        if mask is not None and mask.dtype == torch.bool:
            hidden = torch.finfo(query.dtype).min
            mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, hidden)
        return own(module, query, key, value, mask, **settings)

    return eager


@contextmanager
def attending(current: _Attending) -> Iterator[None]:
    """While this lasts, attention layers of the model that is called meet ``current``."""
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@dataclass
class Recorder:
    """Notes what the attention layers of a call would keep, in the order in which they are run."""

    shapes: list[PageShape] = field(default_factory=list)

    def mask(self, mask_function: Callable[..., Tensor]) -> Tensor | None:
        """As without a pass."""

    def attend(
        self,
        inner: Attention,
        module: torch.nn.Module,
        heads: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        settings: dict[str, Any],
    ) -> tuple[Tensor, Any]:
        """As without a pass."""
        _, key, value = heads
        self.shapes.append(PageShape((key.shape[1], key.shape[3]), (value.shape[1], value.shape[3]), key.dtype))
        return inner(module, *heads, mask, **settings)


@dataclass(frozen=True)
class _Rows:
    """One sequence's rows in a pass."""

    rows: slice
    slots: Tensor
    """[key] of everything that it has in the cache, its new rows at the end."""
    visible: Tensor
    """bool [row, key] by what stands before a row on its path."""
    positions: Tensor
    """[row]."""
    key_positions: Tensor
    """[key]."""


class _PackedPass:
    """The attention of one pass over pages."""

    def __init__(self, batch: PassBatch, storage: TransformersStorage, device: torch.device) -> None:
        self._storage = storage
        self._device = device
        self._layer = 0
        self._sequences = [self._rows_of(batch, sequence) for sequence in range(batch.num_sequences)]
        self._new_slots = torch.cat([each.slots[len(each.slots) - _count(each.rows) :] for each in self._sequences])
        self._num_rows = batch.num_rows

    def _rows_of(self, batch: PassBatch, sequence: int) -> _Rows:
        start, end = map(int, batch.row_starts[sequence : sequence + 2])
        cached = int(batch.cached_lengths[sequence])
        slots = physical_slots(batch.block_tables[sequence], self._storage.block_size, 0, cached + end - start)
        self._storage.tokens[slots[cached:]] = batch.tokens[start:end]
        visible = visible_keys(batch.parents[start:end] - start, cached)
        positions = batch.positions[start:end].astype(np.int64)
        key_positions = np.concatenate([np.arange(cached, dtype=np.int64), positions])
        tables = (slots, visible, positions, key_positions)
        return _Rows(slice(start, end), *[torch.from_numpy(table).to(self._device) for table in tables])

    def mask(self, mask_function: Callable[..., Tensor]) -> Tensor:
        """bool [1, 1, row, key], each sequence's keys counted from its first one and padded with False."""
        most = max(len(each.slots) for each in self._sequences)
        mask = torch.zeros((1, 1, self._num_rows, most), dtype=torch.bool, device=self._device)
        none = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=self._device)
        for each in self._sequences:
            rows, keys = each.positions.view(1, 1, -1, 1), each.key_positions.view(1, 1, 1, -1)
            mask[:, :, each.rows, : len(each.slots)] = mask_function(none, none, rows, keys) & each.visible
        return mask

    def attend(
        self,
        inner: Attention,
        module: torch.nn.Module,
        heads: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        settings: dict[str, Any],
    ) -> tuple[Tensor, Any]:
        """One layer: [1, row, head, dimension]."""
        query, key, value = heads
        layer, self._layer = self._layer, self._layer + 1
        if layer >= len(self._storage.keys) or query.shape[2] != self._num_rows:
            raise UnfitError("its attention layers are not the same in every call")
        if mask is None and settings.get("sliding_window") is not None:
            raise UnfitError("its windows come without a mask")
        self._storage.write(layer, self._new_slots, key, value)
        outputs = []
        for each in self._sequences:
            keys, values = self._storage.read(layer, each.slots)
            seen = each.visible[None, None] if mask is None else mask[:, :, each.rows, : len(each.slots)]
            outputs.append(inner(module, query[:, :, each.rows], keys, values, seen, **settings)[0])
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def visible_keys(parents: NDArray[np.integer[Any]], cached: int) -> NDArray[np.bool_]:
    """[row, cached + row] whether a row sees a key: everything cached, its ancestors and itself.

    ``parents``: [row] within the sequence, negative for none.
    """
    rows = len(parents)
    visible = np.zeros((rows, cached + rows), dtype=np.bool_)
    visible[:, :cached] = True
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            visible[row, cached:] = visible[parent, cached:]
        visible[row, cached + row] = True
    return visible


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)


class Packed:
    """Runs passes of one model so.

    Args:
        call: calls the model.
        layers: what its attention layers keep, in the order in which they are run.
    """

    def __init__(self, call: Caller, layers: list[PageShape]) -> None:
        self._call = call
        self.layers = layers

    def forward(self, batch: PassBatch, storage: TransformersStorage) -> Called:
        """Logits of ``batch.logit_rows`` and states of its taps."""
        device = self._call.device
        with attending(_PackedPass(batch, storage, device)):
            return self._call(
                batch.tokens,
                keep=batch.logit_rows,
                taps=batch.taps,
                positions=batch.positions,
                attention_mask=torch.ones((1, batch.num_rows), dtype=torch.int64, device=device),
                use_cache=False,
            )
