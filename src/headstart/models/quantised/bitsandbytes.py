"""Folders of the package bitsandbytes: NF4 and FP4 in blocks (Dettmers et al., 2023, https://arxiv.org/abs/2305.14314),
and 8-bit rows (LLM.int8(), Dettmers et al., 2022, https://arxiv.org/abs/2208.07339).

4 bits: ``weight`` uint8 [out * in / 2, 1], the first of two weights in a byte's upper half; ``weight.quant_map``
float32 [16] their values; ``weight.absmax`` one for each block; a description as JSON in
``weight.quant_state.bitsandbytes__nf4``. Where the absmax are quantised, too, they are uint8 that stand for values of
``weight.nested_quant_map`` [256], times their own ``weight.nested_absmax``, plus an offset. Weight = value * absmax. 8
bits: ``weight`` int8 [out, in], ``SCB`` float32 [out]. Weight = level * SCB / 127.
"""

from __future__ import annotations

import json
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
from headstart.models.quantised.rows import (
    FOUR_BIT_FLOATS,
    byte_row_type,
    byte_rows,
    four_bit_float_rows,
    four_bit_float_type,
)


def read_bitsandbytes(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of such a folder.

    Raises:
        CheckpointError: a module's tensors do not fit each other.
    """
    found = Found()
    for module in modules(weights, "SCB"):
        outputs, inputs = module.matrix("weight")
        module.require("weight", (outputs, inputs), "I8")
        module.require("SCB", (outputs,), "F32")
        size = 8 + 32 / inputs
        read = partial(_byte_matrix, module)
        own = partial(_byte_rows, module)
        found.derived[module.full("weight")] = Derived((outputs, inputs), "INT8", size, read, own_rows=own)
        found.used.update(module.full(leaf) for leaf in ("SCB", "weight_format") if leaf in module)
    for kind in FOUR_BIT_FLOATS:
        for module in modules(weights, f"weight.quant_state.bitsandbytes__{kind}"):
            _add_four_bit(found, module, kind)
    return found


def _byte_matrix(module: Module) -> Tensor:
    """float32 [out, in]."""
    return module.read("weight").float() * (module.read("SCB") / 127)[:, None]


def _add_four_bit(found: Found, module: Module, kind: str) -> None:
    leaf = f"weight.quant_state.bitsandbytes__{kind}"
    try:
        state = json.loads(module.read(leaf).numpy().tobytes())
        shape = tuple(map(int, state["shape"]))
        block, nested_block = int(state["blocksize"]), int(state.get("nested_blocksize", 1))
        offset = float(state.get("nested_offset", 0.0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise module.fault(f"has no description of its blocks in {leaf}") from error
    count = math.prod(shape)
    if len(shape) != 2 or block < 1 or nested_block < 1 or count % 2 or min(shape) < 1:
        raise module.fault(f"has the impossible shape {list(shape)} in blocks of {block}")
    blocks = -(-count // block)
    nested = "weight.nested_absmax" in module
    module.require("weight", (count // 2, 1), "U8")
    module.require("weight.quant_map", (16,), "F32")
    module.require("weight.absmax", (blocks,), "U8" if nested else "F32")
    leaves = [leaf, "weight.quant_map", "weight.absmax"]
    if nested:
        module.require("weight.nested_absmax", (-(-blocks // nested_block),), "F32")
        module.require("weight.nested_quant_map", (256,), "F32")
        leaves += ["weight.nested_absmax", "weight.nested_quant_map"]
    size = 4 + (8 if nested else 32) / block
    read = partial(_four_bit_matrix, module, shape, block, nested_block if nested else 0, offset)
    own = partial(_four_bit_rows, module, kind, shape, block, nested_block if nested else 0, offset)
    found.derived[module.full("weight")] = Derived(shape, "FLOAT4", size, read, own_rows=own)
    found.used.update(map(module.full, leaves))


def _four_bit_matrix(module: Module, shape: tuple[int, ...], block: int, nested_block: int, offset: float) -> Tensor:
    """float32 [out, in]; ``nested_block`` 0: the absmax are as they are."""
    packed = module.read("weight").reshape(-1)
    values = module.read("weight.quant_map")[torch.stack([packed >> 4, packed & 15], 1).reshape(-1).long()]
    largest = _largest(module, nested_block, offset)
    return (values * largest.repeat_interleave(block)[: len(values)]).reshape(shape)


def _largest(module: Module, nested_block: int, offset: float) -> Tensor:
    """float32 [block] the largest magnitudes."""
    absmax = module.read("weight.absmax")
    if not nested_block:
        return absmax
    scales = module.read("weight.nested_absmax").repeat_interleave(nested_block)[: len(absmax)]
    return module.read("weight.nested_quant_map")[absmax.long()] * scales + offset


def _four_bit_rows(
    module: Module, kind: str, shape: tuple[int, ...], block: int, nested_block: int, offset: float
) -> OwnRows | None:
    outputs, inputs = shape
    type_name = four_bit_float_type(kind, module.read("weight.quant_map"), inputs, block)
    if type_name is None or outputs * inputs % block:
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        return four_bit_float_rows(module.read("weight").reshape(-1), _largest(module, nested_block, offset), outputs)

    return OwnRows(type_name, make)


def _byte_rows(module: Module) -> OwnRows | None:
    type_name = byte_row_type(module.matrix("weight")[1])
    if type_name is None:
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        return byte_rows(module.read("weight"), (module.read("SCB") / 127)[:, None])

    return OwnRows(type_name, make)
