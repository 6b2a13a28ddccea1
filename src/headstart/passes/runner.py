"""One model and its cache: turns rows of sequences into a pass and gives each sequence its share of the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from headstart.common.enumerations import CacheType
from headstart.errors import ConfigError
from headstart.passes.backend import Backend, EncoderBackend, KeepsFewBits, RecordsPasses, RunsStretches
from headstart.passes.batch import EncoderInput, IntArray, KVStorage, PassBatch, RowInputs, TapStates, path_lengths
from headstart.passes.cache.paged import PagedCache
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.rounds import RoundRecord, StretchDrafting, StretchLimits, StretchStates

BLOCK_SIZE = 32
"""Tokens of a cache block: what the native pass keeps in one page."""

NUM_STATES = 64
"""Slots of states, unless somebody says how many."""

Wanted = Literal["all", "last", "none", "best"]
"""Rows of a span whose logits are wanted; "best": of all rows, the best token in place of logits."""


@dataclass(frozen=True)
class Span:
    """The rows of one sequence in one pass, written after its cached tokens in row order."""

    sequence_id: int
    tokens: IntArray
    """[row] token ids."""
    parents: IntArray
    """[row] row of this span before it on its path, -1 where that is the last cached token."""
    logits: Wanted = "all"
    inputs: RowInputs | None = None
    """Rows of this span that read something else than their token."""

    @classmethod
    def chain(cls, sequence_id: int, tokens: Sequence[int], logits: Wanted = "all") -> Span:
        """Consecutive tokens: a prompt chunk, or one step of decoding."""
        rows = np.arange(len(tokens), dtype=np.int32)
        return cls(sequence_id, np.asarray(tokens, dtype=np.int32), rows - 1, logits)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest_path(self) -> int:
        """Rows from a sequence's cached tokens down to the deepest row."""
        return max(path_lengths(self.parents.tolist()), default=0)


@dataclass(frozen=True)
class SpanOutput:
    """A span's share of a pass."""

    logits: Tensor
    """float32 [wanted, vocab]."""
    hidden: TapStates
    best: IntArray | None = None
    """[row] best tokens as ``PassOutput.best`` has them, of a span that wants them."""
    pass_experts: float | None = None
    """``PassOutput.experts``, of the whole pass."""


class ModelRunner:
    """Runs passes of one model over the sequences of its own cache.

    Args:
        backend: computes the passes.
        cache_tokens: tokens that the cache holds, over all sequences; rounded up to whole blocks.
        block_size: tokens of a cache block.
        prefixes: lets sequences share what they begin with; None: each computes its own.
        num_states: slots of states, where the model keeps any.
        cache_type: how keys and values are kept; refused where the backend has no such cache.
    """

    def __init__(
        self,
        backend: Backend,
        cache_tokens: int,
        block_size: int = BLOCK_SIZE,
        prefixes: PrefixIndex | None = None,
        num_states: int = NUM_STATES,
        cache_type: CacheType = CacheType.AUTO,
    ) -> None:
        self.backend = backend
        num_blocks = -(-cache_tokens // block_size)
        num_states = num_states if backend.config.keeps_states else 0
        storage = _allocated(backend, cache_type, num_blocks, block_size, num_states)
        self.cache = PagedCache(storage, prefixes, num_states)
        self._stretches = backend.stretches if isinstance(backend, RunsStretches) else None
        self.unrecorded = backend.unrecorded if isinstance(backend, RecordsPasses) else 0
        """Passes of a shape that take longer than all others (``RecordsPasses``)."""
        self._adapts = True
        self.passes = 0
        """Passes run so far."""
        self.failed_passes = 0
        """Of requests together that raised, after which each request was computed by itself."""
        self.encoder_passes = 0
        """Inputs that the encoder has read so far."""
        self.encoder_seconds = 0.0
        """What that took."""

    def sharing(self, backend: Backend) -> ModelRunner:
        """Runs passes of another backend over the sequences of this one's own cache, whose storage that backend takes:
        its rows stand where this one's would, and have no adapter."""
        other = copy(self)
        other.backend, other._adapts = backend, False
        other._stretches = backend.stretches if isinstance(backend, RunsStretches) else None
        other.passes = 0
        return other

    def forward(
        self, spans: Sequence[Span], taps: tuple[int, ...] = (), num_layers: int | None = None
    ) -> list[SpanOutput]:
        """One pass. The caller holds a reservation of the cache for every span's rows.

        Returns:
            One output a span, in their order. Nothing is committed: that is the caller's decision. Spans may want
            "best" of a backend that ``finds_best``.
        """
        ids = [span.sequence_id for span in spans]
        tables = self.cache.tables(ids)
        lengths = list(map(len, spans))
        starts = list(accumulate(lengths, initial=0))
        logit_rows, logits_of = _shown(spans, starts[1:], "all", "last")
        best_rows, best_of = _shown(spans, starts[1:], "best")
        memories, states = tables.memories, tables.states(lengths)
        output = self.backend.forward(
            PassBatch(
                tokens=_joined([span.tokens for span in spans]),
                parents=_moved(_joined([span.parents for span in spans]), starts[:-1], lengths),
                row_starts=np.array(starts, dtype=np.int32),
                cached_lengths=np.array(tables.lengths, dtype=np.int32),
                block_tables=tables.blocks,
                logit_rows=logit_rows,
                best_rows=best_rows,
                taps=taps,
                num_layers=num_layers,
                inputs=_joined_inputs(spans, starts),
                memory_lengths=None if memories is None else memories[0],
                memory_tables=None if memories is None else memories[1],
                states_before=None if states is None else states[0],
                states_after=None if states is None else states[1],
                adapters=tables.adapters if self._adapts else None,
            ),
            self.cache.storage,
        )
        self.passes += 1
        outputs = []
        logit = best = 0
        for length, logits, bests, start in zip(lengths, logits_of, best_of, starts, strict=False):
            outputs.append(
                SpanOutput(
                    logits=output.logits[logit : logit + logits] if len(logit_rows) else output.logits,
                    hidden=output.hidden.rows(start, start + length),
                    best=output.best[best : best + bests] if bests and output.best is not None else None,
                    pass_experts=output.experts,
                )
            )
            logit, best = logit + logits, best + bests
        return outputs

    def encode(self, sequence_id: int) -> bool:
        """Compute the encoder memory that a sequence reads; False: that was done already, or it has none."""
        memory = self.cache.memory_of(sequence_id)
        if memory is None or memory.computed:
            return False
        start = time.perf_counter()
        cast(EncoderBackend, self.backend).encode(memory.source, self.cache.storage, memory.blocks)
        self.encoder_seconds += time.perf_counter() - start
        memory.computed = True
        self.encoder_passes += 1
        return True

    @property
    def trial_source(self) -> EncoderInput | None:
        """What sequences read of which nothing but the time is wanted; None: the model has no encoder."""
        return None if self.backend.config.encoder is None else EncoderInput((0,) * BLOCK_SIZE)

    @property
    def runs_stretches(self) -> bool:
        """Whether several rounds can be run at once."""
        return self._stretches is not None

    def run_stretch(
        self,
        sequence_ids: Sequence[int],
        roots: Sequence[int],
        limits: Sequence[StretchLimits],
        drafting: StretchDrafting,
    ) -> list[RoundRecord]:
        """Rounds of these sequences, each after its token of ``roots`` (see ``Stretches``). The caller holds a
        reservation of the cache for ``limits.rows`` and ``limits.states``, and commits what it keeps of the rows,
        which stand in order."""
        assert self._stretches is not None
        cache = self.cache
        tables = cache.tables(sequence_ids)
        pools = tables.state_pools
        states = None if pools is None else StretchStates(*pools)
        rounds = self._stretches.run(
            cache.storage,
            tables.blocks,
            tables.lengths,
            roots,
            limits,
            drafting,
            tables.memories,
            states,
            tables.adapters if self._adapts else None,
        )
        for sequence_id, after in zip(sequence_ids, () if states is None else states.after, strict=False):
            cache.place_states(sequence_id, after)
        self.passes += len(rounds)
        return rounds


def _joined(parts: Sequence[IntArray]) -> IntArray:
    """Concatenated; most passes have one sequence, which needs no copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _moved(parents: IntArray, starts: Sequence[int], lengths: Sequence[int]) -> IntArray:
    """Rows of spans as rows of the pass; negative ones stand for none."""
    if len(starts) == 1:
        return parents
    return np.where(parents < 0, parents, parents + np.repeat(np.array(starts, dtype=np.int32), lengths))


def _joined_inputs(spans: Sequence[Span], starts: Sequence[int]) -> RowInputs | None:
    """Those of all spans, by rows of the pass."""
    given = [span.inputs.moved(start) for span, start in zip(spans, starts, strict=False) if span.inputs is not None]
    if not given:
        return None
    return RowInputs(np.concatenate([each.rows for each in given]), torch.cat([each.values for each in given]))


def _shown(
    spans: Sequence[Span], ends: Sequence[int], all_rows: Wanted, last_row: Wanted | None = None
) -> tuple[IntArray, list[int]]:
    """Rows of a pass whose spans want something of all their rows, or of the last; and how many are each span's."""
    counts = [len(span) if span.logits == all_rows else int(span.logits == last_row) for span in spans]
    rows = [row for end, count in zip(ends, counts, strict=True) for row in range(end - count, end)]
    return np.array(rows, dtype=np.int32), counts


def _allocated(backend: Backend, cache_type: CacheType, blocks: int, block_size: int, states: int = 0) -> KVStorage:
    if cache_type is CacheType.AUTO:
        return backend.allocate_cache(blocks, block_size, *([states] if states else []))
    types = backend.cache_types if isinstance(backend, KeepsFewBits) else ()
    if cache_type in types and isinstance(backend, KeepsFewBits):
        return backend.allocate_cache(blocks, block_size, states, cache_type)
    choice = " or ".join((*types, CacheType.AUTO))
    raise ConfigError(f"cache_type is {cache_type.value!r}, which {backend.name} does not have; give {choice}.")


def cache_bytes_per_token(backend: Backend, cache_type: CacheType = CacheType.AUTO) -> int:
    """Bytes that a cached token takes; what the backend does not have is refused."""
    one, two = (_allocated(backend, cache_type, count, BLOCK_SIZE).nbytes for count in (1, 2))
    return max((two - one) // BLOCK_SIZE, 1)


def state_bytes(backend: Backend) -> int:
    """Bytes that a state takes; 0: the model keeps none."""
    if not backend.config.keeps_states:
        return 0
    one, two = (backend.allocate_cache(1, BLOCK_SIZE, count).nbytes for count in (1, 2))
    return two - one
