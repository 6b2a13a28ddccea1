"""What the columns of a head's logits stand for: its own tokens, and behind them those of each text that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.drafting.head_trees.reading import Reading
from headstart.drafting.head_trees.trees import Ids, Scores
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextHead, TextRowSource, TextTokens, text_vocabulary
from headstart.passes.batch import IntArray

Drafted = Sequence[tuple[SequenceView, Reading]]
"""Sequences that are drafted for, and how far each was read."""


class SpeakingPass(Protocol):
    """What all passes of heads tell of their vocabulary."""

    target_ids: Tensor

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]: ...
    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens: ...


class DraftVocabulary:
    """The tokens that a head may say.

    Args:
        running: its pass.
        vocab_size: of the target.
        texts: where rows for tokens come from that its vocabulary lacks; None: it says no others.
        most_text_tokens: of a text, that it may say all the same.
        eps: of the head's last norm, where states that say tokens are not normed.
    """

    def __init__(
        self,
        running: SpeakingPass,
        vocab_size: int,
        texts: TextRowSource | None = None,
        most_text_tokens: int = 0,
        eps: float | None = None,
    ) -> None:
        self._running = running
        self.vocab_size = vocab_size
        """Of the target."""
        self._eps = eps
        self._target_ids = running.target_ids.numpy()
        self._most_text_tokens = most_text_tokens
        self._texts = texts if most_text_tokens else None

    @classmethod
    def of(
        cls,
        running: SpeakingPass,
        vocab_size: int,
        tables: TargetTables,
        head: TextHead,
        most_text_tokens: int,
        eps: float | None = None,
    ) -> DraftVocabulary:
        """That of a head, whose rows for other tokens are mapped from the target's ``tables``."""
        texts = text_vocabulary(head, tables, vocab_size) if most_text_tokens else None
        return cls(running, vocab_size, texts, most_text_tokens, eps)

    @property
    def nbytes(self) -> int:
        """Of what makes tokens of texts sayable."""
        return 0 if self._texts is None else self._texts.nbytes

    @property
    def ids(self) -> IntArray:
        """int32 [draft vocab] target id of each draft id, -1 where the target has none."""
        return np.where(self._target_ids < self.vocab_size, self._target_ids, -1).astype(np.int32)

    def text_tokens(self) -> TextTokens | None:
        """Those of a text that is not read yet; None: none are ever said."""
        return None if self._texts is None else self._running.text_tokens(self._texts, self._most_text_tokens)

    @staticmethod
    def further_ids(drafted: Drafted) -> Ids:
        """[sequence, column] target ids of the text tokens, 0 where a sequence has fewer than another."""
        own = [
            np.empty(0, np.int32) if reading.text_tokens is None else reading.text_tokens.tokens
            for _, reading in drafted
        ]
        ids = np.zeros((len(drafted), max(map(len, own))), np.int64)
        for row, tokens in zip(ids, own, strict=True):
            row[: len(tokens)] = tokens
        return ids

    def columns(self, further: Ids) -> Tensor:
        """int64 [column] target ids of all columns of one sequence; ``further``: those of its text tokens."""
        return torch.cat((self._running.target_ids.cpu(), torch.from_numpy(further)))

    def ranking(self, drafted: Drafted, further: Ids) -> NoiseRanking:
        """How these sequences rank guesses; ``further``: [sequence, column] ids of text tokens."""
        sequences = [sequence for sequence, _ in drafted]
        return NoiseRanking(sequences, self._running.target_ids, self.vocab_size, torch.from_numpy(further))

    def with_text_tokens(self, states: Tensor, logits: Tensor, drafted: Drafted, further: int) -> Tensor:
        """Logits [sequence, beam, column] of the draft vocabulary, and ``further`` columns for tokens of the texts.

        Args:
            states: [row, hidden] that say them, as many rows for each sequence.
            logits: [row, draft vocab] after them.
        """
        logits = logits.view(len(drafted), -1, logits.shape[-1])
        if not further:
            return logits
        columns = logits.new_full((*logits.shape[:2], further), -torch.inf)
        for own, rows, (_, reading) in zip(columns, states.chunk(len(drafted)), drafted, strict=True):
            if reading.text_tokens is not None:
                own[:, : len(reading.text_tokens)] = reading.text_tokens.logits(rows, self._eps)
        return torch.cat((logits, columns), dim=-1)

    def best(self, scores: Tensor, further: Ids, ranks: int) -> tuple[Scores, Ids]:
        """Log-probabilities and target ids of each row's best tokens [sequence, beam, rank].

        Args:
            scores: [sequence, beam, column].
            further: ids of the columns behind the draft vocabulary.
            ranks: tokens of a row at most.
        """
        shape = (*scores.shape[:2], min(ranks, scores.shape[2]))
        log_probs, ids = self._running.best(scores.flatten(0, 1), shape[2])
        tokens = self._target_ids[np.minimum(ids, len(self._target_ids) - 1)].reshape(shape)
        behind = ids.reshape(shape) - len(self._target_ids)
        if further.size:
            own = np.take_along_axis(further[:, None], np.maximum(behind, 0), axis=2)
            tokens = np.where(behind < 0, tokens, own)
        # A head may be wider than the target by padding rows.
        log_probs = log_probs.reshape(shape)
        log_probs[tokens >= self.vocab_size] = -np.inf
        return log_probs, np.minimum(tokens, self.vocab_size - 1)
