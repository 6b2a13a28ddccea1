"""What a pass is told and what it shows: plain tables, the same for every backend.

A *pass* runs the model once over rows of many sequences: prompt chunks, roots and draft trees together,
ragged, without padding. ``PassBatch`` says which rows; a ``Backend`` (torch or native) computes them against
its own ``KVStorage``. Integer tables are NumPy int32, so that one set of tables serves torch and C alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int32]

FINAL_TAP = -1
"""The tap that names the state after the final norm (what the head reads)."""


def stream_taps(count: int) -> tuple[int, ...]:
    """Of each of ``count`` residual streams behind the last layer, before they become one."""
    return tuple(range(FINAL_TAP - 1, FINAL_TAP - 1 - count, -1))


def path_lengths(parents: Sequence[int]) -> list[int]:
    """[row] rows on its path down to it, its own included. A parent (none: -1) always stands before its child."""
    lengths: list[int] = []
    for parent in parents:
        lengths.append(1 if parent < 0 else lengths[parent] + 1)
    return lengths


@dataclass(frozen=True)
class RowInputs:
    """What some rows read in place of their token's embedding; their token stands for nothing then."""

    rows: IntArray
    """[given] rows, ascending."""
    values: Tensor
    """float32 [given, hidden], scaled as the family scales embeddings; learned positions are added to it."""

    def moved(self, distance: int) -> RowInputs:
        """The same, for rows that lie ``distance`` rows further on."""
        return replace(self, rows=self.rows + np.int32(distance))


@dataclass(frozen=True)
class EncoderInput:
    """What an encoder reads: tokens, or features of audio. Equal where it is the same input."""

    tokens: tuple[int, ...] = ()
    features: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """[mel bin, frame], two of which become a position."""
    digest: bytes = b""
    """SHA-256 of the features."""
    foreign: bool = False
    """The tokens are of a vocabulary that the decoder does not speak: nothing can be copied from them."""

    @classmethod
    def of_features(cls, features: NDArray[np.float32]) -> EncoderInput:
        """Of audio."""
        block = np.ascontiguousarray(features, dtype=np.float32)
        return cls(features=block, digest=hashlib.sha256(repr(block.shape).encode() + block.tobytes()).digest())

    @property
    def copyable(self) -> tuple[int, ...]:
        """Its tokens, where the decoder speaks them."""
        return () if self.foreign else self.tokens

    @property
    def positions(self) -> int:
        """Positions of the memory that it becomes."""
        return len(self.tokens) if self.features is None else (self.features.shape[1] + 1) // 2

    @property
    def identity(self) -> str:
        """The same for equal inputs alone."""
        return self.digest.hex() or ",".join(map(str, self.tokens))


@dataclass(frozen=True)
class PassBatch:
    """The rows of one pass. ``row`` counts rows of the whole pass, ``sequence`` the sequences in it.

    A row sees the cached tokens of its own sequence, its ancestors in this pass, and itself; nothing else. Its
    keys and values go to the sequence's logical slot ``cached_lengths[s] + (row - row_starts[s])``; the physical
    place of logical slot i is block ``block_tables[s, i // block_size]``, offset ``i % block_size``.
    """

    tokens: IntArray
    """[row] token ids."""
    parents: IntArray
    """[row] pass-wide row index of the row before it on its path, -1 where that is the last cached token.
    A parent always stands before its child."""
    row_starts: IntArray
    """[sequence + 1] rows of sequence s are ``row_starts[s]:row_starts[s + 1]``, never empty."""
    cached_lengths: IntArray
    """[sequence] tokens in the cache before this pass."""
    block_tables: IntArray
    """[sequence, block] physical block ids, enough for cached and new rows; padded with 0."""
    logit_rows: IntArray
    """[wanted] rows whose logits are returned, ascending."""
    taps: tuple[int, ...] = ()
    """Layers whose *input* is returned for every row (tap num_layers: the last layer's output before the final
    norm; ``FINAL_TAP``: after it)."""
    num_layers: int | None = None
    """Run only the first layers, then final norm and head (early exit); None runs them all."""
    inputs: RowInputs | None = None
    """Rows that read something else than their token; None: all read their token."""

    best_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    """[best] rows of which the best token is returned, ascending, none of them in ``logit_rows``. Only for backends
    that ``finds_best``."""
    memory_lengths: IntArray | None = None
    """[sequence] positions of the encoder memory that its rows read, at least one; None: the model has no encoder."""
    memory_tables: IntArray | None = None
    """[sequence, block] physical blocks of it, padded with 0."""
    states_before: IntArray | None = None
    """[sequence] slot of the state after its cached tokens, -1 where there are none; None: the model keeps none."""
    states_after: IntArray | None = None
    """[row] slot that the state after the row goes to, -1: nowhere. Never one of ``states_before``."""
    adapters: tuple[object | None, ...] | None = None
    """[sequence] ``Adapter.compiled``, by which its rows change the model; None: no sequence has one."""

    @cached_property
    def positions(self) -> IntArray:
        """[row] position of the token in its sequence: the cached length, or the one after its parent's."""
        lengths = np.array(path_lengths(self.parents.tolist()), dtype=np.int32)
        return np.repeat(self.cached_lengths, np.diff(self.row_starts)) + lengths - np.int32(1)

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.cached_lengths)


def rows_at_ends(cached_lengths: IntArray, block_tables: IntArray, says: bool) -> PassBatch:
    """Rows that see all that is in the cache of their sequence and nothing else, for layers that keep nothing: each
    stands in for the last cached token, in a sequence of its own.

    Args:
        cached_lengths: int32 [row], one or more.
        block_tables: int32 [row, block].
        says: logits are wanted.
    """
    count = len(cached_lengths)
    return PassBatch(
        tokens=np.zeros(count, np.int32),
        parents=np.full(count, -1, np.int32),
        row_starts=np.arange(count + 1, dtype=np.int32),
        cached_lengths=cached_lengths - np.int32(1),
        block_tables=block_tables,
        logit_rows=np.arange(count if says else 0, dtype=np.int32),
        taps=(FINAL_TAP,),
    )


@dataclass(frozen=True, slots=True)
class TapStates:
    """States that a pass shows: one block for all taps, made and read at once, on the host."""

    taps: tuple[int, ...]
    """As in ``PassBatch.taps``."""
    states: NDArray[np.float32]
    """[tap, row, hidden]."""

    @classmethod
    def of(cls, states: Mapping[int, Tensor]) -> TapStates:
        """Of states [row, hidden] by tap."""
        return cls(tuple(states), torch.stack(list(states.values())).float().numpy(force=True)) if states else NO_STATES

    def __getitem__(self, tap: int) -> NDArray[np.float32]:
        """[row, hidden]."""
        states: NDArray[np.float32] = self.states[self.taps.index(tap)]
        return states

    def rows(self, first: int, end: int) -> TapStates:
        """Of some rows, which are not copied."""
        return TapStates(self.taps, self.states[:, first:end]) if self.taps else self

    def at(self, taps: tuple[int, ...]) -> NDArray[np.float32]:
        """[tap, row, hidden] of these taps, in their order; perhaps not a copy."""
        return self.states if taps == self.taps else self.states[[self.taps.index(tap) for tap in taps]]


NO_STATES = TapStates((), np.zeros((0, 0, 0), np.float32))


@dataclass(frozen=True)
class PassOutput:
    """What a pass returns.

    ``logits``: float32 [wanted, vocab], in the order of ``PassBatch.logit_rows``.
    ``hidden``: those of ``PassBatch.taps``.
    ``best``: int32 [best], in the order of ``PassBatch.best_rows``: the token of the highest logit, the first of
    equals; -1 where the highest is not finite, or a logit is not a number.
    ``experts``: distinct experts that the rows called, on average over the layers of experts that were run; None: there
    are no such layers, or the backend does not tell.
    """

    logits: Tensor
    hidden: TapStates = NO_STATES
    best: IntArray | None = None
    experts: float | None = None


def safe_steps(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of slots in portions, each of which may be read whole before it is written: as if copied in order."""
    sources, targets = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    # Together, every source is read before any target is written: the same, unless an earlier target is a later
    # source.
    chained = bool(np.triu(targets[:, None] == sources[None, :], 1).any())
    step = 1 if chained else max(len(sources), 1)
    for first in range(0, len(sources), step):
        yield sources[first : first + step], targets[first : first + step]


class KVStorage(Protocol):
    """The memory behind a paged cache. Its layout belongs to the backend that reads it."""

    num_blocks: int
    block_size: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy physical slots (block * block_size + offset) pairwise, in order: ``source[i]`` to ``target[i]``.

        A target slot may be a later pair's source only if the caller ordered the pairs for it; accepted paths
        always move towards lower slots in ascending order, which is safe.
        """
        ...

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks pairwise (copy-on-write after a fork)."""
        ...


@runtime_checkable
class PortableStorage(KVStorage, Protocol):
    """One whose blocks another of the same layout and model can take, in another process, too."""

    layout: str
    """Stands for everything that the bytes depend on beside the model: formats, the code that makes them."""
    block_nbytes: int
    """Bytes of a block."""
    state_nbytes: int
    """Bytes of a state; 0: it has none."""

    def read_block(self, block: int, slot: int | None = None) -> bytes:
        """The bytes of a block, and behind them those of the state in a slot, unless it cannot be had now."""
        ...

    def write_block(self, block: int, content: bytes, slot: int | None = None) -> None:
        """Let a block, and a slot of states, hold what ``read_block`` gave."""
        ...
