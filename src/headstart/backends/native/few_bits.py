"""A model's matrices in three or two bits, in the blocks of GGUF's Q3_K and Q2_K, which the library multiplies.

Layouts of blocks: ggml-common.h in ggml-org/ggml. Units are found by trying a few and fitting the best by least
squares; each matrix is rounded when it is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.matrices import experts_of, formed_of
from headstart.models.linear_weights import LinearWeights
from headstart.models.stored import FileMatrix, Matrix, MatrixPart, StoredTensor
from headstart.models.weights import DecoderWeights

BITS_TAKEN = {4: 5.0, 3: 3.4375, 2: 2.625}
"""Bits of a level -> those that a weight takes with its share of units."""

_SUPERBLOCK, _BLOCK = 256, 16
_AT_ONCE = 1 << 22
"""Weights that are rounded together: temporaries take some thirty times their bytes."""
_STRETCHES = (0.75, 0.85, 0.95, 1.05)
"""Units that are tried, as multiples of the one that spans all of a block: large weights are few, and may be cut."""
_OTHER = "Q4_1"
"""What rows are rounded to that are no whole superblocks."""


def in_fewer_bits(weights: DecoderWeights, bits: int) -> DecoderWeights:
    """The same in levels of ``bits`` bits (3 or 2); where rows are no multiples of 256, in 4. Nothing is read yet."""
    other = exchanged(weights, lambda linear: _rounded(linear, bits))
    # Its blocks differ from the file's in their types, and so in the key of what is packed.
    return other if weights.identity is None else other.identified(weights.identity)


def exchanged(weights: DecoderWeights, change: Callable[[LinearWeights], LinearWeights]) -> DecoderWeights:
    """The same with other matrices in place of those that are packed in blocks."""
    chosen = {id(linear): change(linear) for linear in _linears(weights)}
    other = weights.with_layers([_exchanged(layer, chosen) for layer in weights.layers])
    object.__setattr__(other, "head", chosen[id(weights.head)])
    return other


def _linears(weights: DecoderWeights) -> Iterator[LinearWeights]:
    """All matrices that are packed in blocks, but what spreads streams and makes inputs of layers."""
    for layer in weights.layers:
        yield from (linear for linear in formed_of(layer) if linear is not None)
        for expert in experts_of(layer):
            yield from (expert.up, expert.down)
    yield weights.head


def _exchanged(part: Any, chosen: dict[int, LinearWeights]) -> Any:
    """A part of a model with other matrices."""
    if isinstance(part, LinearWeights):
        return chosen.get(id(part), part)
    if isinstance(part, tuple):
        return tuple(_exchanged(each, chosen) for each in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    held = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: _exchanged(value, chosen) for name, value in held.items()})


def _rounded(linear: LinearWeights, bits: int) -> LinearWeights:
    inputs = linear.matrix.shape[1]
    whole = inputs % _SUPERBLOCK == 0
    if not whole and inputs % 32:
        return linear
    kind, taken = (f"Q{bits}_K", BITS_TAKEN[bits]) if whole else (_OTHER, 5.0)
    parts = tuple(_rounded_part(each, inputs, kind) for each in _parts(linear.matrix))
    return LinearWeights(FileMatrix(parts, inputs, torch.float32), linear.bias, taken)


def _parts(matrix: Tensor | Matrix) -> tuple[MatrixPart, ...]:
    if isinstance(matrix, Tensor):
        return (MatrixPart("", len(matrix), lambda: matrix),)
    return matrix.parts


def _rounded_part(part: MatrixPart, inputs: int, kind: str) -> MatrixPart:
    def make(index: int | None) -> NDArray[np.uint8]:
        return rounded_rows(part.read().float(), kind).reshape(-1)

    stored = StoredTensor(kind, (part.rows, inputs), np.zeros(0, np.uint8), in_blocks=True, make=make)
    return MatrixPart(part.name, part.rows, part.read, stored)


@torch.inference_mode()
def rounded_rows(weight: Tensor, kind: str) -> NDArray[np.uint8]:
    """uint8 [row, byte] of float32 [row, in], in blocks of "Q3_K", "Q2_K" or another type that gguf can make."""
    if kind not in _MADE:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import quantize

        return np.asarray(quantize(weight.numpy(), GGMLQuantizationType[kind]))
    rows = max(1, _AT_ONCE // weight.shape[1])
    some = [weight[first : first + rows] for first in range(0, len(weight), rows)]
    made = [_MADE[kind](each.reshape(-1, _SUPERBLOCK // _BLOCK, _BLOCK)) for each in some]
    return torch.cat(made).numpy().reshape(len(weight), -1)


def _three_bits(weights: Tensor) -> Tensor:
    """uint8 [superblock, 110] of [superblock, 16, 16]: third bits, the other two, units of units, the unit of these."""
    peak = weights.gather(-1, weights.abs().argmax(-1, keepdim=True))  # is at level -4, of which there is one more
    best, error = torch.zeros_like(peak), torch.full_like(peak, torch.inf)
    for stretch in _STRETCHES:
        unit = peak * (-stretch / 4)
        levels = _divided(weights, unit).round_().clamp_(-4, 3)
        unit = _divided((weights * levels).sum(-1, keepdim=True), levels.square().sum(-1, keepdim=True))
        lost = (weights - unit * levels).square_().sum(-1, keepdim=True)
        best, error = torch.where(lost < error, unit, best), torch.minimum(lost, error)
    largest = best.gather(1, best.abs().argmax(1, keepdim=True))
    whole = (largest / -32).half()
    units = _divided(best, whole.float()).round_().clamp_(-32, 31)
    levels = (_divided(weights, whole.float() * units).round_().clamp_(-4, 3) + 4).to(torch.uint8).flatten(1)
    units = (units.squeeze(-1) + 32).to(torch.uint8)
    packed = torch.empty(len(weights), 12, dtype=torch.uint8)
    packed[:, :8] = units[:, :8] & 15 | (units[:, 8:] & 15) << 4
    packed[:, 8:] = _stacked(units.reshape(-1, 4, 4) >> 4, 2)
    third = _stacked(levels.reshape(-1, 8, 32) >> 2, 1)
    return torch.cat((third, _two_bits_of(levels), packed, _bytes(whole)), 1)


def _two_bits(weights: Tensor) -> Tensor:
    """uint8 [superblock, 84] likewise: units and offsets of four bits, levels, the units of both."""
    low = weights.amin(-1, keepdim=True).clamp_(max=0)
    span = weights.amax(-1, keepdim=True) - low
    best_unit, best_low, error = span / 3, low, torch.full_like(low, torch.inf)
    for stretch in _STRETCHES:
        unit, least = span * (stretch / 3), low * stretch
        levels = _divided(weights - least, unit).round_().clamp_(0, 3)
        # The line through weights over levels, by least squares.
        mean_level, mean = levels.mean(-1, keepdim=True), weights.mean(-1, keepdim=True)
        spread = (levels - mean_level).square().sum(-1, keepdim=True)
        unit = _divided(((levels - mean_level) * (weights - mean)).sum(-1, keepdim=True), spread).clamp_(min=0)
        least = (mean - unit * mean_level).clamp_(max=0)
        lost = (weights - unit * levels - least).square_().sum(-1, keepdim=True)
        better = lost < error
        best_unit, best_low = torch.where(better, unit, best_unit), torch.where(better, least, best_low)
        error = torch.minimum(lost, error)
    whole, below = ((each.amax(1, keepdim=True) / 15).half() for each in (best_unit, -best_low))
    units = _divided(best_unit, whole.float()).round_().clamp_(0, 15)
    offsets = _divided(-best_low, below.float()).round_().clamp_(0, 15)
    shifted = weights + below.float() * offsets
    levels = _divided(shifted, whole.float() * units).round_().clamp_(0, 3).to(torch.uint8).flatten(1)
    both = units.squeeze(-1).to(torch.uint8) | offsets.squeeze(-1).to(torch.uint8) << 4
    return torch.cat((both, _two_bits_of(levels), _bytes(whole), _bytes(below)), 1)


_MADE: dict[str, Callable[[Tensor], Tensor]] = {"Q3_K": _three_bits, "Q2_K": _two_bits}


def _divided(above: Tensor, below: Tensor) -> Tensor:
    """Where there is nothing to divide by, nothing."""
    return torch.where(below == 0, 0.0, above / below)


def _two_bits_of(levels: Tensor) -> Tensor:
    """uint8 [superblock, 64]: of 128 levels, four that are 32 apart in each byte."""
    return torch.cat([_stacked(half.reshape(-1, 4, 32) & 3, 2) for half in (levels[:, :128], levels[:, 128:])], 1)


def _stacked(parts: Tensor, bits: int) -> Tensor:
    """uint8 [superblock, byte] of [superblock, part, byte]: each part ``bits`` bits above the one before."""
    shifts = torch.arange(0, bits * parts.shape[1], bits, dtype=torch.uint8)[:, None]
    return ((parts & (1 << bits) - 1) << shifts).sum(1, dtype=torch.uint8)


def _bytes(halves: Tensor) -> Tensor:
    """uint8 [superblock, 2] of float16 [superblock, 1, 1]."""
    return halves.reshape(-1, 1).view(torch.uint8)
