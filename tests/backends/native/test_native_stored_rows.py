"""What the library reads of a file's own blocks: the values that the ``gguf`` package gives, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_blocks import BLOCK_TYPES, random_blocks
from native_cases import isa_params

from headstart.backends.native.formats import KINDS
from headstart.backends.native.library import Library
from headstart.backends.native.loader import load_library
from headstart.backends.native.packing import RowTable, read_matrix
from headstart.models.gguf_types import dequantised
from headstart.models.stored import FileMatrix, MatrixPart, StoredTensor

NATIVE_TYPES = [kind for kind in BLOCK_TYPES if kind in KINDS]


def library_for(isa: str) -> Library:
    library = load_library(isa)
    assert library is not None
    return library


def read(library: Library, matrix: FileMatrix, threads: int = 1) -> torch.Tensor:
    table = RowTable(library, matrix)
    to = torch.full(matrix.shape, torch.nan)
    library.read_rows(table.rows, table.count, matrix.shape[1], threads, to.data_ptr())
    return to


def part_of(kind: str, data: np.ndarray, inputs: int, order: np.ndarray | None = None) -> MatrixPart:
    stored = StoredTensor(kind, (len(data), inputs), data.reshape(-1), in_blocks=True)

    def values() -> torch.Tensor:
        whole = torch.from_numpy(dequantised(data, kind))
        return whole if order is None else whole[torch.from_numpy(order).long()]

    return MatrixPart(kind, len(data), values, stored, order)


def same_bits(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(actual.view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("kind", NATIVE_TYPES)
def test_blocks_have_the_bits_of_the_gguf_package(kind: str, isa: str) -> None:
    data = random_blocks(kind, 24, 512, np.random.default_rng(3))
    matrix = FileMatrix((part_of(kind, data, 512),), 512, torch.float32)
    assert same_bits(read(library_for(isa), matrix, threads=2), matrix.tensor())


@pytest.mark.parametrize("kind", NATIVE_TYPES)
def test_any_finite_unit_will_do(kind: str) -> None:
    """Subnormal halves and signed zeros too."""
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    generator = np.random.default_rng(4)
    data = generator.integers(0, 256, random_blocks(kind, 64, 256, generator).shape, dtype=np.uint8)
    matrix = FileMatrix((part_of(kind, data, 256),), 256, torch.float32)
    with np.errstate(all="ignore"):
        wanted = matrix.tensor()
    actual, number = read(library, matrix), ~wanted.isnan()
    assert torch.equal(actual.isnan(), wanted.isnan())
    assert torch.equal(actual[number], wanted[number])


def test_halves_of_every_value() -> None:
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    stored = StoredTensor("F16", halves.shape, halves.view(np.uint8).reshape(-1))
    matrix = FileMatrix((MatrixPart("x", 256, lambda: torch.from_numpy(halves), stored),), 256, torch.float32)
    actual, wanted = read(library, matrix), torch.from_numpy(halves.astype(np.float32))
    number = ~wanted.isnan()
    assert torch.equal(actual.isnan(), wanted.isnan())
    assert same_bits(actual[number], wanted[number])


def test_parts_of_several_types_stand_below_each_other() -> None:
    """With rows in another order, and types that only the ``gguf`` package knows."""
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    generator = np.random.default_rng(5)
    order = generator.permutation(40).astype(np.int32)
    kinds = [("Q4_K", 40, order), ("NVFP4", 7, None), ("Q6_K", 33, None), ("Q8_0", 1, None)]
    parts = tuple(part_of(kind, random_blocks(kind, rows, 256, generator), 256, moved) for kind, rows, moved in kinds)
    matrix = FileMatrix(parts, 256, torch.float32)
    assert matrix.shape == (81, 256)
    assert same_bits(read(library, matrix, threads=2), matrix.tensor())
    for these in (matrix, FileMatrix(parts[:1], 256, torch.float32)):
        assert torch.equal(read_matrix(these, torch.bfloat16), these.tensor().bfloat16())


def test_bytes_may_stand_anywhere(tmp_path: Path) -> None:
    """Offsets in safetensors files are multiples of nothing."""
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    values = torch.randn(6, 40, generator=torch.Generator().manual_seed(6))
    data = np.frombuffer(b"x" + values.numpy().tobytes(), np.uint8)[1:]
    matrix = FileMatrix((MatrixPart("x", 6, lambda: values, StoredTensor("F32", (6, 40), data)),), 40, torch.float32)
    assert same_bits(read(library, matrix), values)
