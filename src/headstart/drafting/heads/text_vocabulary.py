"""Tokens that a head's vocabulary lacks, and that it may say all the same where the text holds them.

A reduced vocabulary (EAGLE-3, Li et al. 2025, arXiv:2503.01840) leaves out what is rare everywhere; names and terms are
rare everywhere but in the text that is about them. The head's output rows are nearly a linear map of the target's, and
the same map makes rows for the tokens that it lacks. Only those of a sequence's own text are taken: few, and likely
(docs/decisions/0037).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart.passes.batch import IntArray

_BIAS = 1.5
"""On the logit of a token that the text holds: the map knows how rare it is elsewhere."""
_RIDGE = 1e-3
"""Of the mean square of a column."""
_LEFT_OUT = 10
"""One row in so many tells how good the map is that the others make."""
_LEAST_EXPLAINED = 0.5
"""Share of the variance of rows left out that the map must explain."""


class Vocabulary(Protocol):
    """Of a head's configuration, what tells how much it can say."""

    @property
    def reduced(self) -> bool:
        """Whether the head lacks some of the target's tokens."""
        ...


class TextHead(Protocol):
    """A head, as far as rows for further tokens are made of those that it has."""

    @property
    def config(self) -> Vocabulary: ...

    @property
    def target_ids(self) -> Tensor:
        """int64 [draft vocab] target id of each draft id."""
        ...

    def mapped_rows(self, table: Tensor) -> Tensor:
        """[draft vocab, hidden] what a map makes of the target's output rows ``table`` [vocab, target hidden]: the
        head's output rows, with the weight of its last norm in them where states that are fed back lack it."""
        ...

    def mapped_states(self, output: Tensor) -> Tensor:
        """[..., hidden] of a step's output, what such rows are multiplied with."""
        ...


class TextRowSource(Protocol):
    """Output rows for the tokens that a head lacks."""

    bias: float
    """On their logits."""
    lacks: NDArray[np.bool_]
    """[vocab] of the target."""

    @property
    def width(self) -> int:
        """Of a row."""
        ...

    @property
    def nbytes(self) -> int:
        """Of what it holds besides the target's tables."""
        ...

    def rows(self, tokens: IntArray) -> Tensor:
        """bfloat16 [token, hidden] output rows."""
        ...


class TextVocabulary:
    """The tokens that a head lacks, and how its output rows for them are made.

    Args:
        head: with a reduced vocabulary.
        tables: the target's.
        vocab_size: of the target; its tables may be longer.
    """

    bias: float = _BIAS

    @torch.inference_mode()
    def __init__(self, head: TextHead, tables: TargetTables, vocab_size: int) -> None:
        self.table = tables.head.detach().cpu().bfloat16().contiguous()
        """bfloat16 [vocab, target hidden] output rows of the target."""
        self._tied = self.table.data_ptr() == tables.embedding.data_ptr()
        ids = head.target_ids.cpu()
        known = ids < len(self.table)
        ids, rows = ids[known], head.mapped_rows(self.table).detach().cpu().float()[known]
        self.lacks: NDArray[np.bool_] = np.ones(len(self.table), np.bool_)
        """[vocab] of the target."""
        self.lacks[ids.numpy()] = False
        self.lacks[vocab_size:] = False
        inputs = self.table[ids].float()
        row_map = RowMap(inputs)
        apart = row_map.apart
        self.map = row_map(rows).T.contiguous()
        """float32 [hidden, target hidden]."""
        residual = rows[apart] - inputs[apart] @ self.map.T
        variance = float((rows[apart] - rows[~apart].mean(0)).square().sum())
        self.explained = 1.0 - float(residual.square().sum()) / variance if variance else 0.0
        """Share of the variance of the rows left out."""

    @property
    def width(self) -> int:
        """Of a row."""
        return len(self.map)

    @property
    def nbytes(self) -> int:
        """Of what it holds besides the target's embedding."""
        return self.lacks.nbytes + self.map.nbytes + (0 if self._tied else self.table.nbytes)

    @torch.inference_mode()
    def rows(self, tokens: IntArray) -> Tensor:
        """bfloat16 [token, hidden] output rows, with the weight of the head's last norm in them where states that are
        fed back lack it."""
        return (self.table[torch.from_numpy(tokens).long()].float() @ self.map.T).bfloat16()


class TextTokens:
    """What a head may say of one sequence's text beyond its vocabulary. They are in the order of the text.

    Args:
        most: tokens of the text as it is read first, the last ones; what follows may bring as many again.
        rows_of: makes output rows; None: those of ``vocabulary``.
    """

    def __init__(
        self, vocabulary: TextRowSource, most: int, rows_of: Callable[[IntArray], Tensor] | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self._most = most
        self._rows_of = vocabulary.rows if rows_of is None else rows_of
        self._text = 0
        """Tokens of the text that were read."""
        self._count = 0
        self._tokens: IntArray = np.empty(0, np.int32)
        self._rows = torch.empty(0, vocabulary.width, dtype=torch.bfloat16)

    def __len__(self) -> int:
        return self._count

    @property
    def tokens(self) -> IntArray:
        """int32 [token] ids of the target, each once."""
        return self._tokens[: self._count]

    @property
    def rows(self) -> Tensor:
        """bfloat16 [token, hidden] output rows."""
        return self._rows[: self._count]

    @property
    def buffers(self) -> tuple[IntArray, Tensor]:
        """``tokens`` and ``rows``, and the room behind them."""
        return self._tokens, self._rows

    def reserve(self, positions: int) -> int:
        """Make room behind ``tokens`` and ``rows`` for what so many positions may bring; how many fit in all."""
        room = min(self._count + positions, 2 * self._most)
        if room > len(self._tokens):
            tokens, rows = np.empty(room, np.int32), torch.empty(room, self._rows.shape[1], dtype=torch.bfloat16)
            tokens[: self._count], rows[: self._count] = self.tokens, self.rows
            self._tokens, self._rows = tokens, rows
        return len(self._tokens)

    def read(self, text: Sequence[int]) -> None:
        """Know the tokens of a text that begins with what was read before."""
        new, most = np.array(text[self._text :], np.int64), 2 * self._most - self._count
        found: NDArray[np.int64] = new[self.vocabulary.lacks[new]]
        if not self._text:
            # Of tokens that come again the last place counts here, since the last ones stay.
            found, most = np.array([*dict.fromkeys(found[::-1].tolist())][: self._most][::-1], np.int64), self._most
        self._text = len(text)
        if len(found) and most:
            known = set(self.tokens.tolist())
            added = np.array([*dict.fromkeys(each for each in found.tolist() if each not in known)][:most], np.int32)
            if len(added):
                first = self._count
                self.reserve(len(added))
                self._tokens[first : first + len(added)] = added
                self._rows[first : first + len(added)] = self._rows_of(added)
                self._count += len(added)

    @torch.inference_mode()
    def logits(self, states: Tensor, eps: float | None) -> Tensor:
        """float32 [row, token] after states that are fed back [row, hidden].

        Args:
            eps: of the head's last norm, where the states were not normed; else None.
        """
        states = states.float().cpu()
        if eps is not None:
            states = states * (states.square().mean(-1, keepdim=True) + eps).rsqrt()
        return states @ self.rows.float().T + self.vocabulary.bias


def text_vocabulary(head: TextHead, tables: TargetTables, vocab_size: int) -> TextVocabulary | None:
    """None where the head says every token, or where its rows are no linear map of the target's."""
    if not head.config.reduced:
        return None
    vocabulary = TextVocabulary(head, tables, vocab_size)
    return vocabulary if vocabulary.explained >= _LEAST_EXPLAINED else None


class RowMap:
    """Ridge regression from the target's output rows to a head's, linear in the latter.

    Args:
        inputs: float32 [row, target hidden] of the tokens that the head has.
    """

    def __init__(self, inputs: Tensor) -> None:
        self.apart = torch.arange(len(inputs), device=inputs.device) % _LEFT_OUT == 0
        """bool [row] left out, to tell how good the map is."""
        self._seen = inputs[~self.apart]
        squares = self._seen.T @ self._seen
        penalty = _RIDGE * float(squares.diagonal().mean())
        self._factors = torch.linalg.lu_factor(squares + penalty * torch.eye(len(squares), device=inputs.device))

    def __call__(self, rows: Tensor) -> Tensor:
        """[target hidden, hidden] that maps the target's rows to about ``rows`` [row, hidden]."""
        mapped: Tensor = torch.linalg.lu_solve(*self._factors, self._seen.T @ rows[~self.apart])
        return mapped
