"""Tensors that are still in their files, and matrices that are made of them when somebody asks for one.

A model's matrices are never all in memory as floats: each is read when it is packed, or copied, and given back.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.files import WeightsDigest

_FLOATS = ("F64", "F32", "F16", "BF16")
_TYPES = (
    {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    | {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL"}
    | {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"}
)
"""By the names that safetensors has."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor's bytes, as a file holds them."""

    type: str
    """By the name that GGUF and safetensors give it: "F32", "Q4_K", "I8"."""
    shape: tuple[int, ...]
    """In torch order."""
    data: NDArray[np.uint8] = field(repr=False)
    """[byte], row by row."""
    in_blocks: bool = False
    """Whether these are a GGUF's quantised blocks."""
    mapping: mmap.mmap | None = field(default=None, repr=False)
    """What ``data`` is part of, from byte ``offset`` on."""
    offset: int = 0
    make: Callable[[int | None], NDArray[np.uint8]] | None = field(default=None, repr=False)
    """Makes what ``data`` would be, or of those that are stacked the one of this number, where no file holds it in
    this order."""
    index: int | None = None
    """Of the one that is meant."""
    turned: bool = False
    """Whether a row of bytes is a column of ``shape``."""

    @property
    def holds_weights(self) -> bool:
        """Whether it stands for floating-point numbers."""
        return self.in_blocks or self.type in _FLOATS

    def part(self, index: int) -> StoredTensor:
        """One of the tensors that are stacked along the first axis."""
        if self.make is not None:
            return replace(self, shape=self.shape[1:], index=index)
        size = len(self.data) // self.shape[0]
        data = self.data[index * size : (index + 1) * size]
        return replace(self, shape=self.shape[1:], data=data, offset=self.offset + index * size)

    def rows(self) -> NDArray[np.uint8]:
        """[byte] row by row, made if need be."""
        return self.data if self.make is None else self.make(self.index)

    def expect(self) -> None:
        """Have it read from disk; it is wanted soon."""
        self._advise(mmap.MADV_WILLNEED)

    def release(self) -> None:
        """It is not wanted for now: its pages need not count as this process's memory."""
        self._advise(mmap.MADV_DONTNEED)

    def _advise(self, advice: int) -> None:
        if self.mapping is not None:
            start = self.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.mapping.madvise(advice, start, self.offset + len(self.data) - start)


def stored_tensor(tensor: Tensor) -> StoredTensor:
    """A tensor in memory, as a safetensors file would hold it."""
    tensor = tensor.contiguous()
    data = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)
    return StoredTensor(_TYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), data.numpy())


def digest_of(tensors: Mapping[str, StoredTensor]) -> str:
    """Of these tensors by name, see ``WeightsDigest``."""
    digest = WeightsDigest()
    for name, tensor in sorted(tensors.items()):
        digest.add(name, tensor.type, tensor.shape, tensor.data.data)
    return digest.hexdigest()


@dataclass(frozen=True)
class MatrixPart:
    """Some rows of a matrix."""

    name: str
    """Of the tensor."""
    rows: int
    read: Callable[[], Tensor] = field(repr=False)
    """[rows, in] floating-point, in the canonical order of rows."""
    stored: StoredTensor | None = None
    """The same as the file holds it, where its rows are the matrix's."""
    order: NDArray[np.int32] | None = field(default=None, repr=False)
    """[rows] the stored row of each; None: they stand in order."""


class Matrix(Protocol):
    """What weights may hold in place of a tensor."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        ...

    @property
    def parts(self) -> tuple[MatrixPart, ...]:
        """One below the other."""
        ...

    def tensor(self) -> Tensor:
        """[out, in] read from the file."""
        ...


def first_rows(matrix: Tensor | Matrix, count: int) -> Tensor | Matrix:
    """The first rows of a matrix, unread where it is."""
    if isinstance(matrix, Tensor) or count >= matrix.shape[0]:
        return matrix[:count] if isinstance(matrix, Tensor) else matrix
    parts, missing = [], count
    for part in matrix.parts:
        parts.append(_first_rows(part, min(part.rows, missing)))
        missing -= parts[-1].rows
        if not missing:
            break
    return FileMatrix(tuple(parts), matrix.shape[1], torch.float32)


def _first_rows(part: MatrixPart, count: int) -> MatrixPart:
    order = None if part.order is None else part.order[:count]
    return replace(part, rows=count, read=lambda: part.read()[:count], order=order)


class FileMatrix:
    """One matrix from one or several stored ones, stacked along their outputs.

    Args:
        parts: one below the other.
        inputs: of each row.
        dtype: of ``tensor``.
        keeps: whether the tensor is kept once somebody has asked for it, as that of tables that several share.
    """

    def __init__(self, parts: tuple[MatrixPart, ...], inputs: int, dtype: torch.dtype, keeps: bool = False) -> None:
        self.parts = parts
        self.shape = (sum(part.rows for part in parts), inputs)
        self._dtype = dtype
        self._keeps = keeps
        self._kept: Tensor | None = None

    def tensor(self) -> Tensor:
        """[out, in] in the dtype asked for."""
        if self._kept is not None:
            return self._kept
        first, *others = [part.read().to(self._dtype) for part in self.parts]
        tensor = torch.cat((first, *others)) if others else first.contiguous()
        if self._keeps:
            self._kept = tensor
        return tensor
