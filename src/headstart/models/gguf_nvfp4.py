"""NVFP4 in GGUF files, as folders have it: a matrix's second scale stands beside it, or each stacked expert's.

llama.cpp's converter (conversion/base.py) writes ``X.weight``, for 64 inputs four scales and then 16 levels at a time,
of which the second eight stand in the upper halves of bytes; ``X.scale``, unless it is 1; and ``X.input_scale``, which
weights alone have no use for.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.derived import Derived, DerivedTensors, OpenWeights, OwnRows
from headstart.models.quantised.float4 import nvfp4_values
from headstart.models.quantised.rows import NVFP4, nvfp4_rows, pairs

_TYPE = "NVFP4"
_BLOCK_BYTES, _SCALES, _NAN = 36, 4, 127


def with_nvfp4(weights: OpenWeights) -> OpenWeights:
    """The file's tensors, those of NVFP4 with both of their scales.

    Raises:
        CheckpointError: a second scale does not fit its matrix.
    """
    derived, used = {}, set()
    for name, shape in weights.shapes().items():
        if name.endswith(".weight") and weights.stored(name).type == _TYPE:
            stem = name.removesuffix("weight")
            factors = _factors(weights, f"{stem}scale", shape)
            read, own = partial(_values, weights, name, factors), partial(_rows, weights, name, factors)
            derived[name] = Derived(shape, "NVFP4-ROWS", 4.5, read, read, partial(OwnRows, NVFP4, own))
            used |= {f"{stem}scale", f"{stem}input_scale"}
    return DerivedTensors(weights, derived, used) if derived else weights


def _factors(weights: OpenWeights, name: str, shape: tuple[int, ...]) -> Tensor:
    """float32 [matrix]."""
    stacked = shape[0] if len(shape) == 3 else 1
    if name not in weights.shapes():
        return torch.ones(stacked)
    if weights.shapes()[name] not in ((stacked,), (1,)) or weights.stored(name).type != "F32":
        raise CheckpointError(
            f"tensor {name!r:.100} has shape {list(weights.shapes()[name])} and type {weights.stored(name).type}, not "
            f"{stacked} numbers of type F32; fetch or convert the model again."
        )
    return weights.read(name).expand(stacked)


def _parts(weights: OpenWeights, name: str, factors: Tensor, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """As ``nvfp4_rows`` takes them, of one matrix."""
    stored = weights.stored(name)
    stored = stored.part(index) if len(stored.shape) == 3 else stored
    blocks = torch.from_numpy(stored.data.reshape(-1, _BLOCK_BYTES).copy())
    scales = blocks[:, :_SCALES] & _NAN
    scales[scales == _NAN] = 0
    octets = blocks[:, _SCALES:].reshape(len(blocks), _SCALES, -1)
    levels = torch.cat([octets & 15, octets >> 4], -1)
    outputs = stored.shape[0]
    return pairs(levels.view(outputs, -1)), scales.view(outputs, -1).view(torch.float8_e4m3fn), factors[index]


def _values(weights: OpenWeights, name: str, factors: Tensor, index: int | None = None) -> Tensor:
    """float32, of all matrices or of one."""
    if index is None and len(weights.shapes()[name]) == 3:
        return torch.stack([nvfp4_values(*_parts(weights, name, factors, i)) for i in range(len(factors))])
    return nvfp4_values(*_parts(weights, name, factors, index or 0))


def _rows(weights: OpenWeights, name: str, factors: Tensor, index: int | None) -> NDArray[np.uint8]:
    """[byte] of one matrix, or of all."""
    if index is None and len(weights.shapes()[name]) == 3:
        return np.concatenate([nvfp4_rows(*_parts(weights, name, factors, i)) for i in range(len(factors))])
    return nvfp4_rows(*_parts(weights, name, factors, index or 0))
