"""Passes of models that must read a sequence in order: one call for each unbranched stretch of each sequence's rows.

Keys and values of ordinary attention layers are read from and written to pages through a cache of transformers' kind;
what other layers know (the state of a recurrence, a convolution's last inputs, compressed keys) is copied where a path
branches, and kept for the row that it follows. Where a state is no longer there, or a guess after it was rejected, the
tokens since the last one that is there are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.passes.batch import IntArray, PassBatch, TapStates
from headstart_integrations.transformers.calls import Called, Caller
from headstart_integrations.transformers.carried import CachePlan
from headstart_integrations.transformers.storage import State, TransformersStorage, physical_slots

_REREAD_ROWS = 16
"""So many tokens are read again with a pass before it is cut after its root, to have a state there."""
_NOTHING = np.zeros(0, dtype=np.int64)


class Carrying(Enum):
    """How much of what a model remembers can be carried from call to call."""

    SEVERAL = "several"
    """A call may read several rows after what it is given."""
    SINGLE = "single"
    """A call reads one row after what it is given, or a whole text from its start."""
    NOTHING = "nothing"
    """Every call reads the whole text."""


@dataclass(frozen=True)
class _Segment:
    """Rows that follow one another, read in one call."""

    before: tuple[int, ...]
    """Rows of the same sequence on the path before it."""
    rows: tuple[int, ...]


class ByPath:
    """Runs passes of one model so.

    Args:
        call: calls the model.
        plan: of its cache.
        carrying: how much of it can be carried.
    """

    def __init__(self, call: Caller, plan: CachePlan, carrying: Carrying) -> None:
        self._call = call
        self._plan = plan
        self.carrying = carrying
        self.layers = [] if carrying is Carrying.NOTHING else plan.layers
        self._has_states = carrying is not Carrying.NOTHING and plan.has_states

    def forward(self, batch: PassBatch, storage: TransformersStorage) -> Called:
        """Logits of ``batch.logit_rows`` and states of its taps."""
        wanted = np.zeros(batch.num_rows, dtype=np.bool_)
        wanted[batch.logit_rows] = True
        logits: dict[int, Tensor] = {}
        taps: dict[int, NDArray[np.float32]] = {}
        for sequence in range(batch.num_sequences):
            for rows, called in self._sequence(batch, sequence, storage, wanted):
                kept = [row for row in rows if wanted[row]]
                logits.update(zip(kept, called.logits, strict=True))
                if batch.taps:
                    taps.update(zip(rows, np.moveaxis(called.hidden.states, 1, 0)[-len(rows) :], strict=True))
        found = [logits[row] for row in batch.logit_rows.tolist()]
        shown = np.stack([taps[row] for row in range(batch.num_rows)], axis=1) if batch.taps else None
        return Called(
            torch.stack(found) if found else torch.zeros((0, self._call.vocab_size)),
            TapStates.of({}) if shown is None else TapStates(tuple(batch.taps), shown),
        )

    def _sequence(
        self, batch: PassBatch, sequence: int, storage: TransformersStorage, wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[tuple[int, ...], Called]]:
        start, end = map(int, batch.row_starts[sequence : sequence + 2])
        cached, count = int(batch.cached_lengths[sequence]), end - start
        parents = np.where(batch.parents[start:end] < 0, -1, batch.parents[start:end] - start).tolist()
        is_chain = parents == list(range(-1, count - 1))
        slots = physical_slots(batch.block_tables[sequence], storage.block_size, 0, cached + count)
        storage.tokens[slots[cached:]] = batch.tokens[start:end]
        for slot in slots[cached:].tolist():
            storage.states.drop(slot)
        known, state = self._known(storage, slots[:cached])
        if self.carrying is Carrying.SINGLE and (known < cached or (is_chain and count >= _REREAD_ROWS)):
            known, state = 0, None
        cuts = self._cuts(is_chain, count, cached, known, storage.block_size)
        segments = list(_segments(parents, cuts))
        read_alone = self.carrying is Carrying.SINGLE and len(segments) > 1
        if known < cached and (read_alone or sum(not segment.before for segment in segments) > 1):
            # What is read again is read once.
            state = self._run(storage, (slots[:known], slots[known:cached], _NOTHING), state, _NOTHING, ())[1]
            known = cached if self._has_states else known
        ends: dict[int, State | None] = {}
        for segment in segments:
            new = slots[[cached + row for row in segment.rows]]
            kept = np.array([place for place, row in enumerate(segment.rows) if wanted[start + row]], dtype=np.int64)
            if segment.before:
                past = np.concatenate([slots[:cached], slots[[cached + row for row in segment.before]]])
                parts, before = (past, _NOTHING, new), ends[segment.before[-1]]
            else:
                parts, before = (slots[:known], slots[known:cached], new), state
            called, after = self._run(storage, parts, before, kept, batch.taps)
            ends[segment.rows[-1]] = after
            if after is not None:
                storage.states.put(int(new[-1]), after)
            yield tuple(start + row for row in segment.rows), called

    def _known(self, storage: TransformersStorage, slots: NDArray[np.int64]) -> tuple[int, State | None]:
        """How many of the cached tokens need not be read again, and the state after them."""
        if self.carrying is Carrying.NOTHING:
            return 0, None
        if not self._has_states:
            return len(slots), None
        for length in range(len(slots), 0, -1):
            state = storage.states.get(int(slots[length - 1]))
            if state is not None:
                return length, state
        return 0, None

    def _cuts(self, is_chain: bool, rows: int, cached: int, known: int, block_size: int) -> set[int]:
        """Rows of a sequence after which a state is to be had."""
        if not self._has_states:
            return set()
        if self.carrying is Carrying.SINGLE:
            # A text's beginning can be read in one call; whatever follows a state, row by row.
            return set() if known == 0 and is_chain else set(range(rows))
        cuts = set()
        if cached - known >= _REREAD_ROWS:
            cuts.add(0)
        if is_chain and rows > block_size:
            # Others may begin with these blocks.
            cuts.add((cached + rows) // block_size * block_size - cached - 1)
        return cuts

    def _run(
        self,
        storage: TransformersStorage,
        slots: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        state: State | None,
        kept: NDArray[np.int64],
        taps: Sequence[int],
    ) -> tuple[Called, State | None]:
        """One call.

        Args:
            slots: of the rows before it, whose keys and values are there; of those that it reads again; of new ones.
            state: what follows the first of them.
            kept: of the new rows, those whose logits are wanted.
        """
        past, reread, new = slots
        nothing = self.carrying is Carrying.NOTHING
        if nothing:
            past, reread = _NOTHING, np.concatenate([past, reread])
        tokens: IntArray = storage.tokens[np.concatenate([reread, new])]
        rows = (kept + len(reread)).astype(np.int32)
        positions = np.arange(len(past), len(past) + len(tokens), dtype=np.int32)
        if nothing:
            return self._call(tokens, rows, taps, positions, use_cache=False), None
        cache = self._plan.cache(storage, (past, reread, new), state, self._call.device)
        called = self._call(tokens, rows, taps, positions, cache, use_cache=True)
        carried = called.cache if called.cache is not None else cache
        return called, self._plan.state(carried) if self._has_states else None


def _segments(parents: Sequence[int], cuts: set[int]) -> Iterator[_Segment]:
    """Of a sequence's rows, in the order in which they can be read.

    ``parents``: [row], -1 for none; ``cuts``: rows after which a segment ends.
    """
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        children.setdefault(parent, []).append(row)
    paths: dict[int, tuple[int, ...]] = {}
    for row, parent in enumerate(parents):
        if parent >= 0 and len(children[parent]) == 1 and parent not in cuts:
            continue
        rows = [row]
        while len(after := children.get(rows[-1], [])) == 1 and rows[-1] not in cuts:
            rows.append(after[0])
        before = paths[parent] if parent >= 0 else ()
        for place, each in enumerate(rows, 1):
            paths[each] = (*before, *rows[:place])
        yield _Segment(before, tuple(rows))
