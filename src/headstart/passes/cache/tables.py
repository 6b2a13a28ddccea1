"""What the cache knows of a sequence, and how a pass is told of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headstart.passes.batch import IntArray
from headstart.passes.cache.encoder_memory import EncoderMemory
from headstart.passes.cache.prefix import Link
from headstart.passes.cache.states import HeldStates


@dataclass
class SequenceTable:
    """Where a sequence's tokens stand. Lengths are in tokens."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    reserved: int = 0
    salt: str = ""
    chain: list[Link] = field(default_factory=list)
    """[block] what the leading full blocks are known as."""
    memory: EncoderMemory | None = None
    sought: int = 0
    """Tokens up to which files were read, at a step that had time for no more; -1: there are no more."""
    held: HeldStates = field(default_factory=HeldStates)
    adapter: object | None = None


class PassTables:
    """The sequences of a pass, in its order, as arrays that a backend reads.

    Args:
        has_states: whether the model's layers keep states.
    """

    def __init__(self, tables: Sequence[SequenceTable], has_states: bool) -> None:
        self._tables = tables
        self._has_states = has_states

    @property
    def lengths(self) -> list[int]:
        """[sequence] committed tokens in the cache."""
        return [table.length for table in self._tables]

    @property
    def blocks(self) -> IntArray:
        """int32 [sequence, block] block ids, padded with 0."""
        return _padded([table.blocks for table in self._tables])

    @property
    def adapters(self) -> tuple[object | None, ...] | None:
        """As ``PassBatch.adapters``."""
        found = tuple([table.adapter for table in self._tables])
        return found if any(found) else None

    @property
    def memories(self) -> tuple[IntArray, IntArray] | None:
        """int32 [sequence] positions of each sequence's encoder memory, and [sequence, block] its block ids, padded
        with 0; None where a sequence has none."""
        found = [table.memory for table in self._tables if table.memory is not None]
        if len(found) < len(self._tables) or not found:
            return None
        lengths = np.array([memory.source.positions for memory in found], dtype=np.int32)
        return lengths, _padded([memory.blocks for memory in found])

    def states(self, rows: Sequence[int]) -> tuple[IntArray, IntArray] | None:
        """int32 [sequence] the slot of the state that each sequence stands at, and [row] those of the states after the
        first ``rows`` reserved rows of each (``NO_STATE``: none); None where the model has no states."""
        if not self._has_states:
            return None
        after = [slot for table, count in zip(self._tables, rows, strict=True) for slot in table.held.pending[:count]]
        return np.array([table.held.current for table in self._tables], dtype=np.int32), np.array(after, dtype=np.int32)

    @property
    def state_pools(self) -> tuple[list[int], list[list[int]]] | None:
        """[sequence] the slot of the state that each sequence stands at, and the slots that its reserved rows have
        together; None where the model has no states."""
        if not self._has_states:
            return None
        return [table.held.current for table in self._tables], [table.held.pool for table in self._tables]


def _padded(tables: Sequence[Sequence[int]]) -> IntArray:
    """int32 [table, block], padded with 0."""
    if len(tables) == 1:
        return np.array(tables, dtype=np.int32)
    padded = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int32)
    for row, blocks in zip(padded, tables, strict=True):
        row[: len(blocks)] = blocks
    return padded
