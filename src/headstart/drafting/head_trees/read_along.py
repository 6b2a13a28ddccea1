"""How a head reads along with the target: rows of true states, and prefixes that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headstart.drafting.base import RoundOutcome, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.draft_vocabulary import Drafted, DraftVocabulary
from headstart.drafting.head_trees.read_prefixes import ReadPrefixes
from headstart.drafting.head_trees.reading import Reading
from headstart.drafting.heads.head_pass import DraftCache, DraftRows, HeadGrower, StateRecorder
from headstart.passes.batch import IntArray

EAGER_ROWS = 64
"""This many unread rows of a sequence are read as they come, which bounds the memory of long prompts; fewer wait until
a draft needs them."""
RESTING_ROWS = 64
"""Positions without a draft after which nothing is read any more, and only so many of the last ones are known: where
guesses do not pay, a head costs next to nothing."""
_ROWS_PER_PASS = 512


class ReadingPass(Protocol):
    """What all passes of such heads can do (``HeadPass``, ``BlockHeadPass``)."""

    @property
    def nbytes(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    def new_cache(self) -> DraftCache: ...


class ReadRows(Protocol):
    """Turns true states into rows of the caches: of each group the tokens after them, and their features [row, taps *
    hidden]."""

    def __call__(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> object: ...


class Reader:
    """Reads texts along with the target.

    Args:
        taps: layers of the target that the head reads.
        running: its pass.
        read_rows: how that reads.
        vocabulary: what the head may say.
        least_known: positions of a text from which on it guesses.
        window: how far back it looks, in positions; None: over all of a text. What lies further back is not read, and
            rows that fall behind are freed, block by block.
    """

    def __init__(
        self,
        context: DraftContext,
        taps: tuple[int, ...],
        running: ReadingPass,
        read_rows: ReadRows,
        vocabulary: DraftVocabulary,
        least_known: int = 1,
        window: int | None = None,
    ) -> None:
        target = context.require_runner()
        self.taps = taps
        self.vocabulary = vocabulary
        self.readings: dict[int, Reading] = {}
        self.running = running
        self._read_rows = read_rows
        self._least_known = least_known
        self._window = window
        self._scope_of = context.scope_of
        self._unasked = 0
        """Positions that have come, of any text, since a draft was asked for."""
        # As many blocks as the target's cache has, where it finds prefixes again.
        cache = target.cache
        features = np.dtype(np.float32).itemsize * len(taps) * target.backend.config.hidden_size
        max_blocks = 0 if cache.pool.prefixes is None else cache.allocator.num_blocks
        block_bytes = cache.block_size * running.row_bytes + features
        self.prefixes = ReadPrefixes(running.new_cache, cache.block_size, max_blocks, block_bytes, window)

    @property
    def nbytes(self) -> int:
        """Of the head, and of what it may keep of prefixes."""
        return self.running.nbytes + self.vocabulary.nbytes + self.prefixes.max_bytes

    def begin(self, sequence: SequenceView) -> None:
        """A sequence comes, of which nothing is read."""
        self.end(sequence.id)
        reading = self.readings[sequence.id] = Reading(self.running.new_cache(), self.vocabulary.text_tokens())
        reading.unasked = self._unasked

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """A sequence goes on from where another one stands."""
        self.begin(sequence)
        known = self.readings.get(source.id)
        if known is not None:
            self.readings[sequence.id].copy_of(known)

    def end(self, sequence_id: int) -> None:
        """A sequence goes."""
        reading = self.readings.pop(sequence_id, None)
        if reading is not None:
            reading.cache.release()

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        """Know what the target saw in a round."""
        many = []
        for outcome in outcomes:
            reading = self.readings.get(outcome.sequence.id)
            if reading is None:
                continue
            rows, passed_over = outcome.kept_rows, self._passed_over(outcome, reading)
            if passed_over >= len(rows):
                continue
            if not passed_over:
                self._resume(outcome.sequence, reading, outcome.first_position)
            before = reading.end
            reading.append(outcome.first_position + passed_over, outcome.hidden.at(self.taps), rows[passed_over:])
            if outcome.committed:
                self._count(reading, len(rows))
            if self._is_due(reading, before):
                many.append((outcome.sequence, reading))
        self._keep(many)

    def _passed_over(self, outcome: RoundOutcome, reading: Reading) -> int:
        """How many of a chunk's first rows lie before all that a draft will look at."""
        window = RESTING_ROWS if _rests(reading) else self._window
        if window is None or outcome.committed:
            return 0
        return max(len(outcome.sequence.tokens) - 1 - window - outcome.first_position, 0)

    def is_ready(self, sequence: SequenceView) -> bool:
        """Whether enough is known to guess for a sequence."""
        reading, position = self.readings.get(sequence.id), len(sequence.tokens) - 1
        if reading is None:
            return False
        self._resume(sequence, reading, position)
        return reading.known >= self._least_known and reading.end == position

    def prepared(self, sequences: Sequence[SequenceView]) -> Drafted:
        """Sequences that are ready and asked about, with a row each to be read yet, and their texts' tokens."""
        drafted = [(sequence, self.readings[sequence.id]) for sequence in sequences]
        self._unasked = 0
        for sequence, reading in drafted:
            if _rests(reading):
                reading.skip(RESTING_ROWS)
            reading.unasked = 0
            reading.rewind()
            self._forget_rows(reading)
            if reading.text_tokens is not None:
                reading.text_tokens.read(sequence.tokens)
        return drafted

    def go_on(self, sequence: SequenceView, grower: HeadGrower) -> None:
        """A stretch is over, which may have gone further than the sequence."""
        reading = self.readings[sequence.id]
        before, end = reading.end, len(sequence.tokens) - 1
        reading.go_on(end, grower)
        self._after_stretch(sequence, reading, before)

    def record(self, sequence: SequenceView, recorder: StateRecorder) -> None:
        """The same of one in which it was not asked."""
        reading = self.readings[sequence.id]
        before, end = reading.end, len(sequence.tokens) - 1
        reading.record(end, recorder.features)
        self._count(reading, end - before)
        self._after_stretch(sequence, reading, before)

    def _after_stretch(self, sequence: SequenceView, reading: Reading, before: int) -> None:
        if self._is_due(reading, before):
            self._keep([(sequence, reading)])

    def _count(self, reading: Reading, positions: int) -> None:
        """Of a text that is decoded; what is not asked about for long is forgotten but for its end."""
        reading.unasked += positions
        self._unasked += positions
        if _rests(reading) and reading.num_unread > 2 * RESTING_ROWS:
            reading.skip(RESTING_ROWS)

    def _is_due(self, reading: Reading, before: int) -> bool:
        """Whether rows are to be read at once, if the text's end was known up to ``before``."""
        if _rests(reading):
            return False
        return reading.num_unread >= EAGER_ROWS or self.prefixes.wants(reading, before)

    def _keep(self, drafted: Drafted) -> None:
        """Read what is known, and keep the prefixes that were filled."""
        self._read_on(drafted)
        for sequence, reading in drafted:
            self.prefixes.keep(self._scope_of(sequence), sequence.tokens, reading)
            reading.forget_read()
            self._forget_rows(reading)

    def _forget_rows(self, reading: Reading) -> None:
        if self._window is not None:
            reading.forget_rows(self._window)

    def _resume(self, sequence: SequenceView, reading: Reading, position: int) -> None:
        """Where states are missing before ``position``: take what was read there for others, if it is kept."""
        if reading.end != position:
            self.prefixes.resume(self._scope_of(sequence), sequence.tokens[:position], reading)

    def _read_on(self, drafted: Drafted) -> None:
        """Turn known states into rows, but the last of each sequence. The token after a state is known by then, also
        after a prompt chunk."""
        while waiting := [(sequence, reading) for sequence, reading in drafted if reading.num_unread > 1]:
            room = _ROWS_PER_PASS
            rows, parts = [], []
            for sequence, reading in waiting:
                count = min(reading.num_unread - 1, room)
                if not count:
                    break
                room -= count
                rows.append(reading.unread(sequence, count))
                parts.append(DraftRows(reading.cache, count))
            tokens, features = (np.concatenate(column) for column in zip(*rows, strict=True))
            self._read_rows(tokens, torch.from_numpy(features), parts)


def _rests(reading: Reading) -> bool:
    return reading.unasked >= RESTING_ROWS


def unread_rows(drafted: Drafted) -> tuple[IntArray, Tensor, list[DraftRows]]:
    """All rows that these have not read: the tokens after them, features [row, taps * hidden], and whose they are."""
    rows = [reading.unread(sequence) for sequence, reading in drafted]
    tokens, features = (np.concatenate(column) for column in zip(*rows, strict=True))
    return tokens, torch.from_numpy(features), [DraftRows(each.cache, each.num_unread) for _, each in drafted]
