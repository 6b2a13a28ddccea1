"""The target's own output rows, for tokens that a draft vocabulary leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.library import Library
from headstart.backends.native.packing import RowTable, as_one
from headstart.models.stored import Matrix
from headstart.passes.batch import IntArray


class StoredRows:
    """Rows of a table that stays where it is (``TextRowSource``).

    Args:
        table: [vocab, hidden] of the target.
        said: how many of the first tokens are in the draft vocabulary.
        vocab_size: of the target; its table may be longer.
        factors: float32 [hidden] of a row's elements; None: rows are taken as they are.
    """

    bias: float = 0.0

    def __init__(
        self, library: Library, table: Tensor | Matrix, said: int, vocab_size: int, factors: Tensor | None = None
    ) -> None:
        rows, self.width = table.shape
        self.table = RowTable(library, as_one(table))
        """Borrowed by the library."""
        self.lacks: NDArray[np.bool_] = np.zeros(max(rows, vocab_size), np.bool_)
        """[vocab] of the target."""
        self.lacks[said:vocab_size] = True
        self.factors = factors
        self._library = library

    @property
    def nbytes(self) -> int:
        """Of what it holds besides the target's tables."""
        return self.lacks.nbytes

    def rows(self, tokens: IntArray) -> Tensor:
        """bfloat16 [token, hidden] output rows."""
        rows = torch.empty(len(tokens), self.width)
        own = self.table.rows[0]
        chosen = type(own)(
            data=own.data, order=tokens.ctypes.data, row_bytes=own.row_bytes, kind=own.kind, rows=len(tokens)
        )
        self._library.read_rows(chosen, 1, self.width, 1, rows.data_ptr())
        return (rows if self.factors is None else rows * self.factors).bfloat16()


class RowsSideBySide:
    """Rows of several tables, of which each says a token in states of its own (``TextRowSource``)."""

    bias: float = 0.0

    def __init__(self, tables: Sequence[StoredRows]) -> None:
        self._tables = tables
        self.lacks, self.width = tables[0].lacks, sum(each.width for each in tables)

    @property
    def nbytes(self) -> int:
        """Of what they hold besides the tables."""
        return sum(each.nbytes for each in self._tables)

    def rows(self, tokens: IntArray) -> Tensor:
        """bfloat16 [token, table * hidden] output rows."""
        return torch.cat([each.rows(tokens) for each in self._tables], dim=1)
