"""A transformers cache taken apart: keys and values that go to pages, and states, which are copied."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from headstart_integrations.transformers.storage import PageShape, State, TransformersStorage


class PagedLayer(DynamicLayer):  # type: ignore[misc]
    """An attention layer's keys and values of one call: those of a path from the pages, new ones to the pages.

    Args:
        storage, layer: the pages.
        past: slots of the rows before those that the call reads.
        reread: slots of rows that the call reads once more; their keys and values stay as they are.
        new: slots of its new rows.
        window: keys that a row sees at most, its own included; None: all.
    """

    def __init__(
        self,
        storage: TransformersStorage,
        layer: int,
        past: Tensor,
        reread: Tensor,
        new: Tensor,
        window: int | None,
    ) -> None:
        super().__init__()
        self._storage, self._layer = storage, layer
        self._reread, self._new = reread, new
        self._length = len(past)
        self._window = window
        self._past = past if window is None else past[max(len(past) - window + 1, 0) :]
        self.is_sliding = window is not None
        if window is not None:
            self.sliding_window = window
        self.is_initialized = bool(len(past))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """[1, head, key, dimension] of the past that is seen and of the call's rows."""
        rows = slice(key_states.shape[2] - len(self._new), None)
        self._storage.write(self._layer, self._new, key_states[:, :, rows], value_states[:, :, rows])
        return self._storage.read(self._layer, torch.cat([self._past, self._reread, self._new]))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, position of the first)."""
        return len(self._past) + query_length, self._length - len(self._past)

    def get_seq_length(self) -> int:
        """Rows before the call's."""
        return self._length

    def get_max_length(self) -> int:
        """None of its own."""
        return -1 if self._window is None else self._window


class _PagedHybridLayer(LinearAttentionLayer, PagedLayer):  # type: ignore[misc]
    """A layer that attends and keeps a state."""

    is_compileable = False

    def __init__(self, paged: PagedLayer) -> None:
        self.__dict__.update(paged.__dict__)
        LinearAttentionLayer.__init__(self)
        self.is_initialized = paged.is_initialized

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Of the state alone: pages need none."""
        LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)


_HYBRID = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)
_STATE_FIELDS = (
    *("conv_states", "recurrent_states", "is_conv_states_initialized", "is_recurrent_states_initialized"),
    *("has_previous_state", "conv_kernel_size", "number_of_states", "device", "dtype", "record_past"),
)


@dataclass(frozen=True)
class _LayerPlan:
    kind: type[Any]
    pages: int | None
    """Which of the storage's layers; None: it keeps no keys and values in pages."""
    window: int | None
    blank: Any
    """The layer before it has seen anything; None where it keeps nothing but pages."""


class CachePlan:
    """How a model's cache is taken apart.

    Args:
        seen: what the model's cache is after a call over ``rows`` rows, and None where it has none.
        blank: makes an empty one; None: the model does that.
    """

    def __init__(self, seen: Any, blank: Any, rows: int) -> None:
        self.layers: list[PageShape] = []
        self._plans: list[_LayerPlan] | None = None
        if type(seen) is DynamicCache:
            blanks = getattr(blank, "layers", [])
            self._plans = [
                self._plan(layer, blanks[index] if index < len(blanks) else None, rows)
                for index, layer in enumerate(seen.layers)
            ]
        self.has_states = self._plans is None or any(plan.blank is not None for plan in self._plans)
        """Whether there is more to carry than pages."""

    def _plan(self, layer: Any, blank: Any, rows: int) -> _LayerPlan:
        keys: Any = getattr(layer, "keys", None)
        values: Any = getattr(layer, "values", None)
        window = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        paged = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer, *_HYBRID)
        whole = keys is not None and values is not None and keys.ndim == values.ndim == 4
        if not paged or not whole or keys.shape[2] != (rows if window is None else min(rows, window - 1)):
            made = blank if blank is not None and type(blank) is type(layer) else type(layer)()
            return _LayerPlan(type(layer), None, None, made)
        self.layers.append(PageShape((keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3]), keys.dtype))
        return _LayerPlan(type(layer), len(self.layers) - 1, window, blank if isinstance(layer, _HYBRID) else None)

    def cache(
        self,
        storage: TransformersStorage,
        slots: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        state: State | None,
        device: torch.device,
    ) -> Any:
        """What a call gets: pages of ``slots`` (before it, read again, new), and a copy of a state (None: at the
        beginning of a text)."""
        contents = None if state is None else copy.deepcopy(state.contents)
        if self._plans is None:
            return contents
        past, reread, new = (torch.from_numpy(each).to(device) for each in slots)
        layers: list[Any] = []
        for index, plan in enumerate(self._plans):
            held = None if contents is None else contents[index]
            if plan.pages is None:
                layers.append(held if held is not None else copy.deepcopy(plan.blank))
                continue
            layer: Any = PagedLayer(storage, plan.pages, past, reread, new, plan.window)
            if issubclass(plan.kind, _HYBRID):
                layer = _PagedHybridLayer(layer)
                if held is not None:
                    layer.__dict__.update(held)
                elif plan.blank is not None:
                    layer.__dict__.update(copy.deepcopy(_state_of(plan.blank)))
            layers.append(layer)
        cache = DynamicCache()
        cache.layers = layers
        return cache

    def state(self, cache: Any) -> State:
        """What is to be carried of a cache beside its pages."""
        if self._plans is None:
            return State(cache, _bytes_in(cache))
        contents = [
            None if plan.blank is None else layer if plan.pages is None else _state_of(layer)
            for plan, layer in zip(self._plans, cache.layers, strict=False)
        ]
        return State(contents, sum(map(_bytes_in, contents)))


def _state_of(layer: Any) -> dict[str, Any]:
    return {name: vars(layer)[name] for name in _STATE_FIELDS if name in vars(layer)}


def _bytes_in(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_bytes_in, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes_in, value))
    return sum(map(_bytes_in, vars(value).values())) if hasattr(value, "__dict__") and value is not None else 0
