"""Keys and values in 8 bits, as PyTorch keeps them: rounded when they are written, and as they were rounded for
whoever reads them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.common.enumerations import CacheType

BLOCK = 32
"""Numbers of a head that share a unit in ``Q8_0``; the last block of a head may be shorter."""
_UNIT_BYTES = 2
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def kept_row(row: tuple[int, ...], dtype: torch.dtype, cache_type: CacheType) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what is kept of rows [..., number]: bytes with a sign are ``Q8_0``, a head's levels and behind
    them its units (bfloat16, which has a float's range); bytes without one are ``FP8``."""
    if cache_type is CacheType.Q8_0:
        return (*row[:-1], -(-row[-1] // BLOCK) * (BLOCK + _UNIT_BYTES)), torch.int8
    return row, torch.uint8 if cache_type is CacheType.FP8 else dtype


def write_rows(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Put rows [row, ..., number] into their slots of a cache [slot, *kept_row]."""
    if cache.dtype is torch.int8:
        rows = _in_blocks(rows)
    elif cache.dtype is torch.uint8:
        rows = rows.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
    cache.index_copy_(0, slots, rows)


def read_rows(kept: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[..., size] the first numbers of what has been kept of such rows."""
    if kept.dtype is torch.uint8:
        return kept[..., :size].view(torch.float8_e4m3fn).to(dtype)
    if kept.dtype is not torch.int8:
        return kept[..., :size]
    blocks = kept.shape[-1] // (BLOCK + _UNIT_BYTES)
    levels = kept[..., : blocks * BLOCK].reshape(*kept.shape[:-1], blocks, BLOCK).to(dtype)
    units = kept[..., blocks * BLOCK :].contiguous().view(torch.bfloat16).to(dtype)
    return (levels * units[..., None]).flatten(-2)[..., :size]


def _in_blocks(rows: Tensor) -> Tensor:
    blocks = F.pad(rows.float(), (0, -rows.shape[-1] % BLOCK)).view(*rows.shape[:-1], -1, BLOCK)
    units = (blocks.abs().amax(-1) / 127).bfloat16()
    divisors = torch.where(units > 0, units, 1).float()[..., None]
    levels = (blocks / divisors).round().clamp(-127, 127).to(torch.int8)
    return torch.cat((levels.flatten(-2), units.view(torch.int8)), dim=-1)
