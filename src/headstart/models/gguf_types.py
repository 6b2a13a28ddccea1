"""The types that tensors of a GGUF file have: those that the ``gguf`` package knows, and younger ones.

Sources: ggml-common.h and ggml-quants.c in ggml-org/ggml for Q1_0 and Q2_0; PrismML's fork of llama.cpp wrote Q2_0 with
twice as long blocks under the same number, and released models so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GgufType:
    """Blocks of so many weights in so many bytes."""

    name: str
    block: int
    nbytes: int


YOUNGER = {41: (GgufType("Q1_0", 128, 18),), 42: (GgufType("Q2_0", 64, 18), GgufType("Q2_0/128", 128, 34))}
"""Number -> what it may mean, which the room that a tensor has tells."""
CODEBOOK_TYPES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
"""Of these, a block holds the numbers of points of a codebook, and signs, or deltas."""
_FEW_BITS = {kind.name: (kind, bits) for number, bits in ((41, 1), (42, 2)) for kind in YOUNGER[number]}


def gguf_types(number: int) -> tuple[GgufType, ...]:
    """What a type's number may mean; nothing: there is no such type."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if number in YOUNGER:
        return YOUNGER[number]
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        return ()
    return (GgufType(kind.name, *GGML_QUANT_SIZES[kind]),)


def dequantised(rows: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """float32 [row, in] of blocks [row, byte].

    Raises:
        NotImplementedError: the type cannot be dequantised.
    """
    if kind in _FEW_BITS:
        return _few_bits(rows, *_FEW_BITS[kind])
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return np.asarray(dequantize(rows, GGMLQuantizationType[kind]), np.float32)


def codebook(kind: str) -> NDArray[np.uint8]:
    """uint8 [point, weight] of one of ``CODEBOOK_TYPES``: a magnitude's place among the type's, in ascending order."""
    from gguf import quants

    of_kind = getattr(quants, kind)
    of_kind.init_grid()
    points = of_kind.grid.reshape(of_kind.grid_shape)
    return np.asarray(np.searchsorted(of_kind.grid_map, points), np.uint8)


def _few_bits(rows: NDArray[np.uint8], kind: GgufType, bits: int) -> NDArray[np.float32]:
    """A unit in half precision, then levels from a byte's lowest bits on: of one bit -1 or 1, of two from -1 to 2."""
    blocks = rows.reshape(-1, kind.nbytes)
    units = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    levels = (blocks[:, 2:, None] >> shifts & (2**bits - 1)).reshape(len(blocks), kind.block).astype(np.float32)
    values = units * (2 * levels - 1 if bits == 1 else levels - 1)
    return np.asarray(values, np.float32).reshape(len(rows), -1)
