"""Which form of packed weights holds what kind of stored ones: at least as near to the file as bf16, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.stored import Matrix
from headstart.models.weights import DecoderWeights, ExpertsWeights, LayerWeights, LinearWeights, MlpWeights

LINEARS = ("qkv", "output", "up", "down")
"""Of a layer, by their numbers in the interface."""
EXPERT_LINEARS = ("up", "down")
"""Of an expert, likewise."""

ABSENT = 0
FOUR, EIGHT, FINE, BF16 = 4, 8, 10, 16
"""No such matrix; blocks with levels of four or eight bits, blocks of 16 inputs with levels of eight; bf16. As
``headstart_create`` takes them."""

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


def types_of(matrix: Tensor | Matrix) -> list[str]:
    """What its parts are stored as."""
    if isinstance(matrix, Tensor):
        return ["BF16" if matrix.dtype is torch.bfloat16 else "F32"]
    return ["F32" if part.stored is None else part.stored.type for part in matrix.parts]


def linears_of(layer: LayerWeights) -> tuple[LinearWeights | None, ...]:
    """A layer's matrices, as ``LINEARS`` numbers them: attention's and a dense channel part's, or the shared expert's;
    None where there is no such expert."""
    dense = layer.channel if isinstance(layer.channel, MlpWeights) else layer.channel.shared
    return (*layer.mixer.linears, *((None, None) if dense is None else (dense.up, dense.down)))


def experts_of(layer: LayerWeights) -> tuple[MlpWeights, ...]:
    """A layer's experts, the shared one left out."""
    return layer.channel.experts if isinstance(layer.channel, ExpertsWeights) else ()


def _expert_linears(layers: Sequence[LayerWeights]) -> list[LinearWeights | None]:
    """[layer, expert, matrix] in one row, as ``EXPERT_LINEARS`` numbers them; None in layers without experts."""
    count = max(len(experts_of(layer)) for layer in layers)
    found: list[LinearWeights | None] = []
    for layer in layers:
        own = [linear for expert in experts_of(layer) for linear in (expert.up, expert.down)]
        found += own or [None] * (count * len(EXPERT_LINEARS))
    return found


def nearest_bits(weights: DecoderWeights, multiplies_bytes: bool) -> NDArray[np.uint8]:
    """uint8 the form of each matrix that is smallest of those at least as near to the file as bf16: of layers, the
    output head, and then of experts, as ``headstart_create`` takes them.

    ``multiplies_bytes``: without a dot product of bytes, rows are dear in eight bits; then only the head, which few
    rows read, has them, and it alone is no reason for blocks.
    """
    dense = [linear for layer in weights.layers for linear in linears_of(layer)]
    matrices = [*dense, weights.head, *_expert_linears(weights.layers)]
    bits = np.array([ABSENT if each is None else _nearest(types_of(each.matrix)) for each in matrices], np.uint8)
    if not multiplies_bytes:
        dear = (bits == FINE) | (bits == EIGHT)
        dear[len(dense)] = bits[len(dense)] == FINE
        if FOUR not in bits:
            dear = bits != ABSENT
        bits[dear] = BF16
    return bits


def all_in_bf16(bits: NDArray[np.uint8]) -> bool:
    """Whether all matrices that there are have this form."""
    return bool(((bits == BF16) | (bits == ABSENT)).all())


def _nearest(types: Sequence[str]) -> int:
    return min(set.intersection(*(_HELD_BY.get(each, set()) for each in types)), default=BF16)


def blocks_bits(weights: DecoderWeights, as_stored: bool) -> NDArray[np.uint8]:
    """The same where everything is to be in blocks; the head has levels of eight bits."""
    in_four = mostly_in_four_bits(weights.layers)
    experts = [_levels(linear, as_stored, in_four) for linear in _expert_linears(weights.layers)]
    return np.concatenate((level_bits(weights.layers, as_stored).reshape(-1), [EIGHT], experts)).astype(np.uint8)


def level_bits(layers: Sequence[LayerWeights], as_stored: bool = False) -> NDArray[np.uint8]:
    """uint8 [layer, matrix] how many bits levels get where weights are in blocks: 4, or 8 for what a file keeps in more
    than 4 of which it keeps most weights in 4 (Q4_K_M, say). Of other files, 4 bits are what was asked for.

    ``as_stored``: 4 for what blocks of 4 bits hold and 8 for everything else. (In fewer bits, blocks are shorter: no
    grid of sixteen levels holds two of them.)
    """
    in_four = mostly_in_four_bits(layers)
    return np.array([[_levels(each, as_stored, in_four) for each in linears_of(layer)] for layer in layers], np.uint8)


def _levels(linear: LinearWeights | None, as_stored: bool, mostly_in_four: bool) -> int:
    if linear is None:
        return ABSENT
    if as_stored:
        return FOUR if _fits_four(linear) else EIGHT
    return EIGHT if linear.stored_bits > _FOUR_BIT_BLOCKS and mostly_in_four else FOUR


def _fits_four(linear: LinearWeights) -> bool:
    if isinstance(linear.matrix, Tensor):
        return 4 <= linear.stored_bits <= _FOUR_BIT_BLOCKS
    return _nearest(types_of(linear.matrix)) == FOUR


def mostly_in_four_bits(layers: Sequence[LayerWeights]) -> bool:
    """Whether the file that they come from keeps most of their weights in blocks of 4 bits."""
    return _mostly(layers, lambda bits: bits <= _FOUR_BIT_BLOCKS)


def _mostly(layers: Sequence[LayerWeights], holds: Callable[[float], bool]) -> bool:
    """Whether something holds of what most weights take in the file."""
    matrices = [linear for layer in layers for linear in (*layer.mixer.linears, *layer.channel.linears)]
    sizes = [each.matrix.shape[0] * each.matrix.shape[1] for each in matrices]
    of_those = [size for size, each in zip(sizes, matrices, strict=True) if holds(each.stored_bits)]
    return 2 * sum(of_those) > sum(sizes)
