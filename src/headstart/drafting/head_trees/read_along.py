"""What drafters share whose head reads along with the target: rows of true states, prefixes that are kept, and the
tokens of a text that the head lacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import ConfidenceOptions, HeadOptions
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.drafting.head_trees.read_prefixes import ReadPrefixes
from headstart.drafting.head_trees.reading import Features, Reading
from headstart.drafting.head_trees.trees import Ids, Scores
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextHead, TextRowSource, TextTokens, text_vocabulary
from headstart.drafting.options import require
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import DraftTree

EAGER_ROWS = 64
"""This many unread rows of a sequence are read as they come, which bounds the memory of long prompts; fewer wait until
a draft needs them."""
_ROWS_PER_PASS = 512


@dataclass(frozen=True)
class SpeakingOptions(ConfidenceOptions):
    """What drafters may be told whose head may say more than its vocabulary."""

    text_vocabulary: int = 512
    """Tokens of the text that its vocabulary lacks and that it may say all the same, at most; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.text_vocabulary >= 0, f"text_vocabulary is {self.text_vocabulary}; it must be 0 or more.")


class ReadingPass(Protocol):
    """What all passes of such heads can do (``HeadPass``, ``BlockHeadPass``)."""

    target_ids: Tensor

    @property
    def nbytes(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    def new_cache(self) -> DraftCache: ...
    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]: ...
    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens: ...


class ReadingDrafter(ABC):
    """Reads along with the target; sub-classes say how rows are read and how drafts grow.

    Args:
        head: what is run; None: it says every token.
        taps: layers of the target that it reads.
        running: its pass.
        tables: the target's.
        most_text_tokens: of a text, that its vocabulary lacks and that it may say all the same.
    """

    def __init__(
        self,
        context: DraftContext,
        options: HeadOptions,
        head: TextHead | None,
        taps: tuple[int, ...],
        running: ReadingPass,
        tables: TargetTables,
        most_text_tokens: int = 0,
    ) -> None:
        target = context.require_runner()
        self._options = options
        self._taps = taps
        self._kit = target.backend.kit
        self._running = running
        self._target_ids = running.target_ids.numpy()
        self._most_text_tokens = most_text_tokens
        self._vocabulary: TextRowSource | None = None
        if head is not None and most_text_tokens:
            self._vocabulary = text_vocabulary(head, tables, context.vocab_size)
        self._vocab_size = context.vocab_size
        self._readings: dict[int, Reading] = {}
        self._scope_of = context.scope_of
        # As many blocks as the target's cache has, where it finds prefixes again.
        cache = target.cache
        features = np.dtype(np.float32).itemsize * len(taps) * target.backend.config.hidden_size
        max_blocks = 0 if cache.prefixes is None else cache.allocator.num_blocks
        block_bytes = cache.block_size * running.row_bytes + features
        self._prefixes = ReadPrefixes(running.new_cache, cache.block_size, max_blocks, block_bytes)
        self.needs = TargetSignals(taps=taps)

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Guesses after one row at most."""

    @abstractmethod
    def _read_rows(self, rows: Sequence[tuple[IntArray, Features]], groups: Sequence[DraftRows]) -> object:
        """Turn true states into rows of the caches: of each group the tokens after them, and their features."""

    @abstractmethod
    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """Drafts for sequences that may have rows to be read first."""

    @property
    def nbytes(self) -> int:
        """Of the head, and of what it may keep of prefixes."""
        vocabulary = 0 if self._vocabulary is None else self._vocabulary.nbytes
        return self._running.nbytes + vocabulary + self._prefixes.max_bytes

    def begin(self, sequence: SequenceView) -> None:
        self.end(sequence.id)
        vocabulary = self._vocabulary
        text_tokens = None if vocabulary is None else self._running.text_tokens(vocabulary, self._most_text_tokens)
        self._readings[sequence.id] = Reading(self._running.new_cache(), text_tokens)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        self.begin(sequence)
        known = self._readings.get(source.id)
        if known is not None:
            self._readings[sequence.id].copy_of(known)

    def end(self, sequence_id: int) -> None:
        reading = self._readings.pop(sequence_id, None)
        if reading is not None:
            reading.cache.release()

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        many = []
        for outcome in outcomes:
            reading = self._readings.get(outcome.sequence.id)
            if reading is None:
                continue
            self._resume(outcome.sequence, reading, outcome.first_position)
            before = reading.end
            reading.append(outcome.first_position, outcome.hidden.at(self._taps), outcome.kept_rows)
            if reading.num_unread >= EAGER_ROWS or self._prefixes.wants(reading, before):
                many.append((outcome.sequence, reading))
        self._keep(many)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = [DraftTree.empty()] * len(sequences)
        active = [
            i
            for i, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True))
            if min(budget.nodes, budget.depth) > 0 and self._is_ready(sequence)
        ]
        if active:
            drafted = [(sequences[i], self._readings[sequences[i].id]) for i in active]
            self._prepare(drafted)
            grown = self._grow(drafted, [budgets[i] for i in active])
            for i, tree in zip(active, grown, strict=True):
                trees[i] = tree
        return trees

    @staticmethod
    def _prepare(drafted: Sequence[tuple[SequenceView, Reading]]) -> None:
        """Before these are drafted for."""
        for sequence, reading in drafted:
            reading.rewind()
            if reading.text_tokens is not None:
                reading.text_tokens.read(sequence.tokens)

    def _keep(self, drafted: Sequence[tuple[SequenceView, Reading]]) -> None:
        """Read what is known, and keep the prefixes that were filled."""
        self._read_on(list(drafted))
        for sequence, reading in drafted:
            self._prefixes.keep(self._scope_of(sequence), sequence.tokens, reading)
            reading.forget_read()

    def _is_ready(self, sequence: SequenceView) -> bool:
        reading, position = self._readings.get(sequence.id), len(sequence.tokens) - 1
        if reading is None:
            return False
        self._resume(sequence, reading, position)
        return reading.known > 0 and reading.end == position

    def _resume(self, sequence: SequenceView, reading: Reading, position: int) -> None:
        """Where states are missing before ``position``: take what was read there for others, if it is kept."""
        if reading.end != position:
            self._prefixes.resume(self._scope_of(sequence), sequence.tokens[:position], reading)

    def _read_on(self, waiting: list[tuple[SequenceView, Reading]]) -> None:
        """Turn known states into rows, but the last of each sequence. The token after a state is known by then, also
        after a prompt chunk."""
        waiting = [(sequence, reading) for sequence, reading in waiting if reading.num_unread > 1]
        while waiting:
            room = _ROWS_PER_PASS
            rows, parts = [], []
            for sequence, reading in waiting:
                count = min(reading.num_unread - 1, room)
                if not count:
                    break
                room -= count
                rows.append(reading.unread(sequence, count))
                parts.append(DraftRows(reading.cache, count))
            self._read_rows(rows, parts)
            waiting = [(sequence, reading) for sequence, reading in waiting if reading.num_unread > 1]

    def _with_text_tokens(
        self,
        states: Tensor,
        logits: Tensor,
        drafted: Sequence[tuple[SequenceView, Reading]],
        further: int,
        eps: float | None = None,
    ) -> Tensor:
        """Logits [sequence, beam, column] of the draft vocabulary, and ``further`` columns for tokens of the texts.

        Args:
            states: [row, hidden] that say them, as many rows for each sequence.
            logits: [row, draft vocab] after them.
            eps: of the head's last norm, where the states were not normed.
        """
        logits = logits.view(len(drafted), -1, logits.shape[-1])
        if not further:
            return logits
        columns = logits.new_full((*logits.shape[:2], further), -torch.inf)
        for own, rows, (_, reading) in zip(columns, states.chunk(len(drafted)), drafted, strict=True):
            if reading.text_tokens is not None:
                own[:, : len(reading.text_tokens)] = reading.text_tokens.logits(rows, eps)
        return torch.cat((logits, columns), dim=-1)

    @staticmethod
    def _further_ids(drafted: Sequence[tuple[SequenceView, Reading]]) -> Ids:
        """[sequence, column] target ids of the text tokens, 0 where a sequence has fewer than another."""
        own = [
            np.empty(0, np.int32) if reading.text_tokens is None else reading.text_tokens.tokens
            for _, reading in drafted
        ]
        ids = np.zeros((len(drafted), max(map(len, own))), np.int64)
        for row, tokens in zip(ids, own, strict=True):
            row[: len(tokens)] = tokens
        return ids

    def _noise_ranking(self, drafted: Sequence[tuple[SequenceView, Reading]], further: Ids) -> NoiseRanking:
        sequences = [sequence for sequence, _ in drafted]
        return NoiseRanking(sequences, self._running.target_ids, self._vocab_size, torch.from_numpy(further))

    def _best(self, scores: Tensor, further: Ids) -> tuple[Scores, Ids]:
        """Log-probabilities and target ids of each row's best tokens [sequence, beam, rank].

        Args:
            scores: [sequence, beam, column].
            further: ids of the columns behind the draft vocabulary.
        """
        shape = (*scores.shape[:2], min(self.ranks, scores.shape[2]))
        log_probs, ids = self._running.best(scores.flatten(0, 1), shape[2])
        tokens = self._target_ids[np.minimum(ids, len(self._target_ids) - 1)].reshape(shape)
        behind = ids.reshape(shape) - len(self._target_ids)
        if further.size:
            own = np.take_along_axis(further[:, None], np.maximum(behind, 0), axis=2)
            tokens = np.where(behind < 0, tokens, own)
        # A head may be wider than the target by padding rows.
        log_probs = log_probs.reshape(shape)
        log_probs[tokens >= self._vocab_size] = -np.inf
        return log_probs, np.minimum(tokens, self._vocab_size - 1)
