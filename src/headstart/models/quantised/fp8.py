"""Folders in 8-bit floating-point numbers (E4M3, E5M2), as DeepSeek, transformers, vLLM and Neural Magic write them.

``weight`` float8 [out, in]; its scales as ``weight_scale_inv`` or ``weight_scale``, whichever name: one for the tensor,
one for each output ([out] or [out, 1]), or one for each block ([out / rows, in / columns], 128 x 128 as a rule, the
last blocks perhaps partial). Weight = number * scale, in spite of the first name. Scales of activations
(``input_scale``) are no part of the model: activations are not rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.derived import Derived, OpenWeights, OwnRows
from headstart.models.quantised.parts import Found, Module, modules
from headstart.models.quantised.rows import float8_rows, float8_type

TYPES = ("F8_E4M3", "F8_E5M2")
_SCALES = ("weight_scale_inv", "weight_scale")
_IGNORED = ("input_scale", "activation_scale", "input_zero_point")


def read_fp8(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of such a folder.

    Raises:
        CheckpointError: a module's tensors do not fit each other.
    """
    found = Found()
    block = settings.get("weight_block_size")
    for module in modules(weights, "weight"):
        name = next((leaf for leaf in _SCALES if leaf in module), None)
        if name is None or weights.stored(module.full("weight")).type not in TYPES:
            continue
        add_fp8(found, module, name, block)
    return found


def add_fp8(found: Found, module: Module, name: str, block: object = None) -> None:
    """One module with scales of this name, in blocks of this size where they are neither one nor one an output.

    Raises:
        CheckpointError: they do not fit.
    """
    shape, scales = module.matrix("weight"), module.shape(name)
    size = _block(module, shape, scales, block)
    module.require(name, scales, "F32", "F16", "BF16")
    read = partial(_matrix, module, name, size)
    own = partial(_own_rows, module, name, size)
    bits = 8 + 32 * math.prod(scales) / max(math.prod(shape), 1)
    found.derived[module.full("weight")] = Derived(shape, "F8", bits, read, own_rows=own)
    found.used.update(module.full(leaf) for leaf in (name, *_IGNORED) if leaf in module)


def _block(module: Module, shape: tuple[int, ...], scales: tuple[int, ...], block: object) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    outputs, inputs = shape
    if math.prod(scales) == 1:
        return outputs, inputs
    if scales in ((outputs,), (outputs, 1)):
        return 1, inputs
    sizes = block if isinstance(block, list | tuple) else [128, 128]
    if len(sizes) == 2 and all(isinstance(each, int) and each > 0 for each in sizes):
        rows, columns = sizes
        if scales == (-(-outputs // rows), -(-inputs // columns)):
            return rows, columns
    raise module.fault(f"has scales {list(scales)}, which fit its weights {list(shape)} in no known way")


def _matrix(module: Module, name: str, size: tuple[int, int]) -> Tensor:
    """float32 [out, in]."""
    weight, (rows, columns) = module.read("weight").float(), size
    scales = _scales(module, name)
    spread = scales.repeat_interleave(rows, 0)[: len(weight)].repeat_interleave(columns, 1)[:, : weight.shape[1]]
    return weight * spread


def _scales(module: Module, name: str) -> Tensor:
    """float32 [of rows, of columns]"""
    scales = module.read(name).float()
    return scales.reshape(-1, 1) if scales.ndim < 2 else scales


def _own_rows(module: Module, name: str, size: tuple[int, int]) -> OwnRows | None:
    rows, columns = size
    _, inputs = module.matrix("weight")
    type_name = float8_type(rows, columns, inputs)
    if type_name is None or module.stored_type("weight") != "F8_E4M3":
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        numbers = module.read("weight")
        if bool(((numbers.view(torch.uint8) & 0x7F) == 0x7F).any()):
            raise module.fault("has weights that are no numbers")
        return float8_rows(numbers, _scales(module, name), rows)

    return OwnRows(type_name, make)
