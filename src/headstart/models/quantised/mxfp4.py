"""MXFP4 (OCP microscaling formats, version 1.0, section 5.3), as in the folders of gpt-oss.

Experts' matrices are ``NAME_blocks`` uint8 [expert, out, block, 16], two 4-bit floating-point numbers (E2M1) in a byte,
the first in its lower half, and ``NAME_scales`` uint8 [expert, out, block], exponents of two with bias 127. They are
read as transformers has them: ``NAME`` [expert, in, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.derived import Derived, OpenWeights, OwnRows
from headstart.models.quantised.parts import Found
from headstart.models.quantised.rows import mxfp4_rows

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BLOCK_BYTES = 16


def read_mxfp4(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The experts of such a folder.

    Raises:
        CheckpointError: blocks and scales do not fit each other.
    """
    found = Found()
    shapes = weights.shapes()
    for blocks in shapes:
        name = blocks.removesuffix("_blocks")
        scales = f"{name}_scales"
        if name == blocks or scales not in shapes:
            continue
        shape = shapes[blocks]
        types = {weights.stored(blocks).type, weights.stored(scales).type}
        if len(shape) != 4 or shape[3] != _BLOCK_BYTES or shapes[scales] != shape[:3] or types != {"U8"}:
            raise CheckpointError(
                f"{blocks!r:.100} {list(shape)} and {scales!r:.100} {list(shapes[scales])} do not fit each other; "
                "fetch the model again."
            )
        experts, outputs, count, _ = shape
        made = (experts, 2 * _BLOCK_BYTES * count, outputs)
        read = partial(_matrices, weights, blocks, scales)
        own = partial(_own_rows, weights, blocks, scales)
        found.derived[name] = Derived(made, "MXFP4-ROWS", 4.25, read, read, own)
        found.used |= {blocks, scales}
    return found


def _matrices(weights: OpenWeights, blocks: str, scales: str, index: int | None = None) -> Tensor:
    """float32 [expert, in, out], or that of one expert [in, out]."""
    table = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
    packed = weights.read(blocks, index)
    levels = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    exponents = weights.read(scales, index).to(torch.int32) - 127
    return torch.ldexp(table[levels.long()], exponents[..., None]).flatten(-2).transpose(-1, -2).contiguous()


def _own_rows(weights: OpenWeights, blocks: str, scales: str) -> OwnRows:
    """Of one expert, its outputs' rows."""

    def make(index: int | None) -> NDArray[np.uint8]:
        return mxfp4_rows(weights.read(blocks, index), weights.read(scales, index))

    return OwnRows("MXFP4", make, turned=True)
