"""What stored bytes stand for: a tensor, or some rows of a matrix that stays in its file."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.gguf_types import dequantised
from headstart.models.stored import FileMatrix, Matrix, StoredTensor

PLAIN = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
}
"""Types that torch stores as they are; all others of a GGUF file are blocks to dequantise."""
_WIDE_ROW = 1 << 13
"""Values of a row that is long enough to be dequantised at full pace."""


def values_of(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> Tensor:
    """Plain types as stored, a GGUF file's blocks as float32; a copy either way.

    Args:
        data: [byte], or [row, byte].
        kind: as ``StoredTensor.type`` has it.
        shape: of what is made, in torch order.

    Raises:
        NotImplementedError: the type cannot be dequantised.
    """
    dtype = PLAIN.get(kind)
    if dtype is not None:
        return torch.from_numpy(data.reshape(-1).copy()).view(dtype).reshape(shape)
    rows = data.reshape(_wide_rows(shape), -1)
    # A damaged block may hold an infinite scale; that is for the loader to judge, not worth a warning here.
    with np.errstate(all="ignore"):
        values = dequantised(rows, kind)
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).reshape(shape)


def _wide_rows(shape: tuple[int, ...]) -> int:
    """As how many rows to dequantise a tensor: the library takes 16 at a time, which is little where rows are short.

    Blocks do not care where rows end, as long as a row is made of whole ones.
    """
    *outer, row = shape
    rows = math.prod(outer)
    while rows % 2 == 0 and row < _WIDE_ROW:
        rows, row = rows // 2, row * 2
    return rows


class StoredRows:
    """A table whose rows stay in the file, as it holds them, until they are looked up.

    Args:
        stored: [row, size], in a file's own order.
    """

    def __init__(self, stored: StoredTensor) -> None:
        self._kind = stored.type
        self._count, self._size = stored.shape
        self._rows = stored.data.reshape(self._count, -1)

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 [row] of the table, on the processor -> [row, size], as ``values_of`` gives them."""
        rows = self._rows[ids.numpy()]
        return values_of(rows, self._kind, (len(rows), self._size))


def rows_in_file(matrix: Tensor | Matrix) -> StoredRows | None:
    """Reads single rows of a matrix from its file; None: they have to be read all at once.

    Raises:
        CheckpointError: the matrix is of a type that cannot be dequantised.
    """
    if not isinstance(matrix, FileMatrix) or len(matrix.parts) != 1:
        return None
    part = matrix.parts[0]
    stored = part.stored
    if stored is None or stored.make is not None or stored.turned or part.order is not None:
        return None
    if not stored.in_blocks and stored.type not in PLAIN:
        return None
    rows = StoredRows(stored)
    try:
        rows(torch.zeros(1, dtype=torch.int64))
    except NotImplementedError:
        part.read()  # says so
    return rows
