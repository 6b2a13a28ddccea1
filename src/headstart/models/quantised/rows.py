"""Quantised matrices in blocks along their inputs, row by row, as a backend may keep and multiply them: their folder's
own levels and scales in another order.

The types, by the names that backends know them by; all numbers of several bytes are little-endian.

- "INT4/32", "/64", "/128", "/256", "INT8/32", "/128": for so many inputs a scale in half precision, a byte that holds
  the zero, then the levels, the lowest bits first. Weight = (level - zero) * scale.
- "INT8/ROW": for 256 inputs a float32 scale, then signed levels. Weight = level * scale.
- "NF4", "FP4": for 64 inputs a float32, then levels, the first of two in the upper half of a byte.
- "NVFP4/16": for 64 inputs a float32 that all of the matrix has, the scales of each 16 (E4M3), then levels, the first
  of two in the lower half of a byte. Weight = number * (scale * float).
- "FP8", "FP8/128": float32 scales, one for the row or for every 128 inputs; then the row's numbers (E4M3).
- "MXFP4": as in GGUF.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_INTEGERS = {4: (256, 128, 64, 32), 8: (128, 32)}
"""Inputs of a block, by bits."""
_ROW_INPUTS, _FLOAT_INPUTS, _FLOAT8_INPUTS, _NVFP4_INPUTS = 256, 64, 128, 64
_E4M3_NAN = 127
NVFP4 = "NVFP4/16"
_ROWS_OF_A_SCALE = 16
"""Rows that have one scale at least, where "FP8/128" holds a matrix."""


def integer_type(bits: int, group: int) -> str | None:
    """What holds levels of these bits, up to 8, with zeros, in groups of so many inputs; None: nothing does."""
    held = 4 if bits <= 4 else 8
    fitting = [each for each in _INTEGERS[held] if group % each == 0]
    return f"INT{held}/{fitting[0]}" if fitting else None


def byte_row_type(group: int) -> str | None:
    """What holds signed bytes without zeros, whatever their scales."""
    return "INT8/ROW" if group % _ROW_INPUTS == 0 else None


def four_bit_float_type(kind: str, values: Tensor, inputs: int, block: int) -> str | None:
    """What holds bitsandbytes' levels, by their sixteen values."""
    known = torch.equal(values, FOUR_BIT_FLOATS[kind])
    return kind.upper() if known and inputs % _FLOAT_INPUTS == block % _FLOAT_INPUTS == 0 else None


def float8_type(rows: int, columns: int, inputs: int) -> str | None:
    """What holds E4M3 numbers with a scale for so many rows and columns."""
    if columns >= inputs:
        return "FP8"
    return "FP8/128" if columns == _FLOAT8_INPUTS and rows % _ROWS_OF_A_SCALE == 0 else None


def fits_half(scales: Tensor) -> bool:
    """Whether half precision has all of these numbers."""
    return scales.dtype is torch.float16 or bool((scales.half().float() == scales.float()).all())


def integer_rows(type_name: str, levels: Tensor, zeros: Tensor, scales: Tensor) -> NDArray[np.uint8]:
    """[byte] of "INT4/..." and "INT8/...".

    Args:
        levels: uint8 [out, in * bits / 8].
        zeros: [out, group]
        scales: [out, group], see ``fits_half``.
    """
    bits, each = (int(part) for part in type_name.removeprefix("INT").split("/"))
    groups = scales.shape[1]
    blocks = levels.shape[1] * 8 // bits // each
    units = scales.half().repeat_interleave(blocks // groups, 1)
    zeros = zeros.to(torch.uint8).repeat_interleave(blocks // groups, 1)
    return _beside(blocks, units, zeros, levels)


def byte_rows(levels: Tensor, scales: Tensor) -> NDArray[np.uint8]:
    """[byte] of "INT8/ROW"; levels int8 [out, in], scales [out, group]."""
    outputs, inputs = levels.shape
    blocks = inputs // _ROW_INPUTS
    units = scales.float().expand(outputs, -1).repeat_interleave(blocks // scales.shape[1], 1)
    return _beside(blocks, units, levels)


def four_bit_float_rows(levels: Tensor, largest: Tensor, outputs: int) -> NDArray[np.uint8]:
    """[byte] of "NF4" and "FP4"; levels uint8 [out * in / 2], largest float32 [block]."""
    blocks = 2 * len(levels) // (outputs * _FLOAT_INPUTS)
    return _beside(
        blocks,
        largest.repeat_interleave(outputs * blocks // len(largest)).view(outputs, blocks),
        levels.view(outputs, -1),
    )


def float8_rows(numbers: Tensor, scales: Tensor) -> NDArray[np.uint8]:
    """[byte] of "FP8" and "FP8/128"; numbers [out, in], scales [out, of columns]."""
    return _beside(1, scales.float(), numbers)


def mxfp4_rows(blocks: Tensor, exponents: Tensor) -> NDArray[np.uint8]:
    """[byte] of "MXFP4"; blocks uint8 [out, block, 16], the first of two levels in the lower half of a byte."""
    levels = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    return torch.cat([exponents[..., None], levels[..., :16] | levels[..., 16:] << 4], -1).flatten().numpy()


def nvfp4_type(scales: Tensor) -> str | None:
    """What holds numbers with these scales, [out, in / 16] of E4M3: those of whole blocks, none below 0 or NaN."""
    fits = scales.shape[1] * 16 % _NVFP4_INPUTS == 0 and bool((scales.view(torch.uint8) < _E4M3_NAN).all())
    return NVFP4 if fits else None


def nvfp4_rows(levels: Tensor, scales: Tensor, factor: Tensor) -> NDArray[np.uint8]:
    """[byte] of "NVFP4/16"; levels uint8 [out, in / 2], scales [out, in / 16], factor float32 of one number."""
    blocks = 2 * levels.shape[1] // _NVFP4_INPUTS
    return _beside(blocks, factor.reshape(1, 1).expand(len(levels), blocks), scales, levels)


def pairs(levels: Tensor) -> Tensor:
    """uint8 [row, in / 2]: two levels of four bits in a byte, the first in its lower half."""
    levels = levels.to(torch.uint8)
    return levels[:, 0::2] | levels[:, 1::2] << 4


def bytes_of(words: Tensor) -> Tensor:
    """uint8 [..., 4 * word] of int32, the lowest first."""
    return words.contiguous().view(torch.uint8)


def _beside(blocks: int, *parts: Tensor) -> NDArray[np.uint8]:
    """[byte]: of each row's blocks the parts one behind the other."""
    outputs = len(parts[0])
    split = [part.contiguous().view(torch.uint8).view(outputs, blocks, -1) for part in parts]
    return torch.cat(split, -1).flatten().numpy()


FOUR_BIT_FLOATS = {
    "nf4": torch.tensor(
        [
            *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
            *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
            *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023),
            1.0,
        ]
    ),
    "fp4": torch.tensor([sign * each for sign in (1, -1) for each in (0, 0.0625, 8, 12, 4, 6, 2, 3)]) / 12,
}
"""The values of bitsandbytes' levels, in parts of a block's largest magnitude."""
