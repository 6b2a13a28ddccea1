"""Which form of packed weights holds what kind of stored ones: at least as near to the file as bf16, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.precision import Precision
from headstart.models.files import WeightsIdentity
from headstart.models.stored import Matrix
from headstart.models.weights import LayerWeights, LinearWeights, NormWeights

LINEARS = ("qkv", "output", "up", "down")
"""Of a layer, by their numbers in the interface."""
CROSS_LINEARS = ("cross_query", "cross_output")
"""Those of a layer that reads an encoder memory, too, with the numbers behind."""

FOUR, EIGHT, FINE, BF16 = 4, 8, 10, 16
"""Blocks with levels of four or eight bits, blocks of 16 inputs with levels of eight; bf16. As ``headstart_create``
takes them."""

KINDS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
    "TQ2_0": 35,
    "MXFP4": 39,
}
"""What the library reads as files have it (``src/kernels/stored_rows.h``); of other types it is given floats."""

_HELD_BY = {
    "Q4_0": {FOUR, EIGHT, FINE},
    "Q4_1": {FOUR, FINE},
    "Q4_K": {FOUR, FINE},
    "IQ1_S": {FOUR},
    "IQ3_S": {FOUR},
    "TQ1_0": {FOUR, EIGHT},
    "TQ2_0": {FOUR, EIGHT, FINE},
    "Q5_0": {EIGHT, FINE},
    "Q8_0": {EIGHT, FINE},
    "IQ4_NL": {EIGHT, FINE},
    "IQ4_XS": {EIGHT, FINE},
    "MXFP4": {EIGHT, FINE},
    "Q2_K": {FINE},
    "Q3_K": {FINE},
    "Q5_1": {FINE},
    "Q5_K": {FINE},
    "Q6_K": {FINE},
    "INT4": {FOUR},
    "INT8": {EIGHT},
}
"""Blocks that hold a type's weights better than bf16 does, most of them to the bit; fine ones hold whatever the library
reads of a file itself. Types that are not named are in bf16."""

_FOUR_BIT_BLOCKS = 5.0
"""Bits that a weight takes at most in a file's blocks of 4 bits, units and offsets included."""


class DecoderParts(Protocol):
    """What is packed of a model: ``DecoderWeights``, or the decoder of a model with an encoder."""

    @property
    def layers(self) -> Sequence[LayerWeights]: ...
    @property
    def final_norm(self) -> NormWeights | None: ...
    @property
    def embedding_norm(self) -> NormWeights | None: ...
    @property
    def positions(self) -> Tensor | None: ...
    @property
    def rope_factors(self) -> Tensor | None: ...
    @property
    def identity(self) -> WeightsIdentity | None: ...
    @property
    def table(self) -> Tensor | Matrix: ...
    @property
    def linears(self) -> Iterator[LinearWeights]:
        """Every layer's as ``linears_of`` has them, the output head last."""
        ...


def types_of(matrix: Tensor | Matrix) -> list[str]:
    """What its parts are stored as."""
    if isinstance(matrix, Tensor):
        return ["BF16" if matrix.dtype is torch.bfloat16 else "F32"]
    return ["F32" if part.stored is None else part.stored.type for part in matrix.parts]


def linears_of(layer: LayerWeights) -> tuple[LinearWeights, ...]:
    """A layer's matrices by number: attention's and a dense channel part's, then cross attention's."""
    cross = () if layer.cross is None else (layer.cross.q, layer.cross.output)
    return (*layer.mixer.linears, *layer.channel.linears, *cross)


def nearest_bits(weights: DecoderParts, multiplies_bytes: bool) -> NDArray[np.uint8]:
    """uint8 [layer * matrices + 1] the form of each matrix: the smallest of those at least as near to the file as bf16.

    ``multiplies_bytes``: without a dot product of bytes, rows are dear in eight bits; then only the head, which few
    rows read, has them, and it alone is no reason for blocks.
    """
    bits = [_nearest(types_of(linear.matrix)) for linear in weights.linears]
    if not multiplies_bytes:
        bits = [
            BF16 if each == FINE or (each == EIGHT and index < len(bits) - 1) else each
            for index, each in enumerate(bits)
        ]
        if FOUR not in bits:
            bits = [BF16] * len(bits)
    return np.array(bits, np.uint8)


def _nearest(types: Sequence[str]) -> int:
    return min(set.intersection(*(_HELD_BY.get(each, set()) for each in types)), default=BF16)


def single_form(linear: LinearWeights, precision: Precision, multiplies_bytes: bool) -> tuple[Precision, int]:
    """The precision of a matrix by itself in a model of this one, and its bits where that is in blocks."""
    if precision not in ("nearest", "blocks"):
        return precision, FOUR
    bits = _nearest(types_of(linear.matrix))
    if bits == FOUR or (bits == EIGHT and multiplies_bytes):
        return "int4", bits
    return ("bf16", FOUR) if precision == "nearest" else ("int4", EIGHT)


def blocks_bits(weights: DecoderParts, as_stored: bool) -> NDArray[np.uint8]:
    """uint8 [layer * matrices + 1] the forms where everything is to be in blocks; the head has levels of eight bits."""
    return np.append(level_bits(weights.layers, as_stored).reshape(-1), np.uint8(EIGHT))


def level_bits(layers: Sequence[LayerWeights], as_stored: bool = False) -> NDArray[np.uint8]:
    """uint8 [layer, matrix] how many bits levels get where weights are in blocks: 4, or 8 for what a file keeps in more
    than 4 of which it keeps most weights in 4 (Q4_K_M, say). Of other files, 4 bits are what was asked for.

    ``as_stored``: 4 for what blocks of 4 bits hold and 8 for everything else. (In fewer bits, blocks are shorter: no
    grid of sixteen levels holds two of them.)
    """
    linears = [linears_of(layer) for layer in layers]
    if as_stored:
        return np.array([[FOUR if _fits_four(each) else EIGHT for each in row] for row in linears], np.uint8)
    stored = np.array([[each.stored_bits for each in row] for row in linears])
    return np.where((stored > _FOUR_BIT_BLOCKS) & mostly_in_four_bits(layers), EIGHT, FOUR).astype(np.uint8)


def _fits_four(linear: LinearWeights) -> bool:
    if isinstance(linear.matrix, Tensor):
        return 4 <= linear.stored_bits <= _FOUR_BIT_BLOCKS
    return _nearest(types_of(linear.matrix)) == FOUR


def mostly_in_four_bits(layers: Sequence[LayerWeights]) -> bool:
    """Whether the file that they come from keeps most of their weights in blocks of 4 bits."""
    return _mostly(layers, lambda bits: bits <= _FOUR_BIT_BLOCKS)


def _mostly(layers: Sequence[LayerWeights], holds: Callable[[float], bool]) -> bool:
    """Whether something holds of what most weights take in the file."""
    matrices = [linear for layer in layers for linear in linears_of(layer)]
    sizes = [each.matrix.shape[0] * each.matrix.shape[1] for each in matrices]
    of_those = [size for size, each in zip(sizes, matrices, strict=True) if holds(each.stored_bits)]
    return 2 * sum(of_those) > sum(sizes)
