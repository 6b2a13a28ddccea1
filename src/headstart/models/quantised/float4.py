"""Folders in 4-bit floating-point numbers (E2M1) that stand two in a byte, the first in its lower half.

compressed-tensors: ``weight_packed`` uint8 [out, in / 2]. "nvfp4-pack-quantized": ``weight_scale`` float8 (E4M3)
[out, in / 16] and ``weight_global_scale`` [1]; weight = number * (scale * (1 / global scale)), as vLLM has it.
"mxfp4-pack-quantized": ``weight_scale`` uint8 [out, in / 32], exponents of two with bias 127.

DeepSeek-V4: experts' ``weight`` int8 [out, in / 2] and ``scale`` [out, in / 32], such exponents; others: ``fp8``.

modelopt (NVIDIA's Model Optimizer), "NVFP4": ``weight`` uint8 [out, in / 2], ``weight_scale`` float8 [out, in / 16],
``weight_scale_2``, one number; weight = number * (scale * second scale). "FP8": see ``fp8``.
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
from headstart.models.quantised.fp8 import TYPES, add_fp8, read_fp8
from headstart.models.quantised.parts import Found, Module, modules
from headstart.models.quantised.rows import mxfp4_rows, nvfp4_rows, nvfp4_type

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NV_INPUTS, _MX_INPUTS = 16, 32
"""Numbers that share a scale."""
_ALGORITHMS = ("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION")
_IGNORED = ("input_scale", "input_global_scale")


def read_fp8_and_fp4(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """As ``read_fp8``, and experts as DeepSeek-V4 has them.

    Raises:
        CheckpointError: a module's tensors do not fit each other.
    """
    found = read_fp8(weights, settings)
    for module in modules(weights, "weight"):
        if "scale" in module and module.stored_type("weight") == "I8":
            add_mxfp4(found, module, "weight", "scale")
    return found


def read_modelopt(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of a folder of NVIDIA's Model Optimizer.

    Raises:
        CheckpointError: its algorithm is not served, or a module's tensors do not fit each other.
    """
    algorithm = settings.get("quant_algo")
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"quantization_config: quant_algo is {algorithm!r:.40}, but only {', '.join(_ALGORITHMS)} are read; use "
            "another model."
        )
    found = Found()
    for module in modules(weights, "weight"):
        if "weight_scale" not in module:
            continue
        stored = module.stored_type("weight")
        if stored in TYPES:
            add_fp8(found, module, "weight_scale")
        elif stored == "U8":
            add_nvfp4(found, module, "weight", "weight_scale_2", divides=False)
    return found


def add_nvfp4(found: Found, module: Module, leaf: str, second: str, divides: bool) -> None:
    """One module whose numbers have two scales; the second one divides the first, or multiplies it.

    Raises:
        CheckpointError: its tensors do not fit each other.
    """
    shape = _shape(module, leaf, _NV_INPUTS, "weight_scale", "F8_E4M3")
    if module.shape(second) not in ((), (1,)):
        raise module.fault(f"has {second} of shape {list(module.shape(second))} instead of one number")
    module.require(second, module.shape(second), "F32")
    read = partial(_nvfp4_matrix, module, leaf, second, divides)
    own = partial(_nvfp4_rows, module, leaf, second, divides)
    found.derived[module.full("weight")] = Derived(shape, "NVFP4-ROWS", 4.5, read, own_rows=own)
    found.used.update(map(module.full, (leaf, "weight_scale", second, *_IGNORED)))


def add_mxfp4(found: Found, module: Module, leaf: str = "weight_packed", scale: str = "weight_scale") -> None:
    """One module with exponents.

    Raises:
        CheckpointError: its tensors do not fit each other.
    """
    shape = _shape(module, leaf, _MX_INPUTS, scale, "U8", "F8_E8M0")
    read, own = partial(_mxfp4_matrix, module, leaf, scale), partial(_mxfp4_rows, module, leaf, scale)
    found.derived[module.full("weight")] = Derived(shape, "MXFP4-ROWS", 4.25, read, own_rows=own)
    found.used.update(map(module.full, (leaf, scale, *_IGNORED)))


def _shape(module: Module, leaf: str, inputs: int, scale: str, *scales: str) -> tuple[int, int]:
    outputs, octets = module.matrix(leaf)
    module.require(leaf, (outputs, octets), "U8", "I8")
    if 2 * octets % inputs:
        raise module.fault(f"has {2 * octets} inputs, which are no multiple of {inputs}")
    module.require(scale, (outputs, 2 * octets // inputs), *scales)
    return outputs, 2 * octets


def _numbers(octets: Tensor) -> Tensor:
    """float32 [out, in], without scales."""
    table = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)])
    return table[torch.stack([octets & 15, octets >> 4], -1).flatten(-2).long()]


def nvfp4_values(octets: Tensor, scales: Tensor, factor: Tensor) -> Tensor:
    """float32 [out, in] of ``nvfp4_rows``'s arguments."""
    return _numbers(octets) * (scales.float() * factor).repeat_interleave(_NV_INPUTS, 1)


def _nvfp4_parts(module: Module, leaf: str, second: str, divides: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As ``nvfp4_rows`` takes them."""
    factor = module.read(second).float()
    return module.read(leaf).view(torch.uint8), module.read("weight_scale"), 1 / factor if divides else factor


def _nvfp4_matrix(module: Module, leaf: str, second: str, divides: bool) -> Tensor:
    """float32 [out, in]."""
    return nvfp4_values(*_nvfp4_parts(module, leaf, second, divides))


def _nvfp4_rows(module: Module, leaf: str, second: str, divides: bool) -> OwnRows | None:
    kind = nvfp4_type(module.read("weight_scale"))
    if kind is None:
        return None
    return OwnRows(kind, lambda _: nvfp4_rows(*_nvfp4_parts(module, leaf, second, divides)))


def _mxfp4_matrix(module: Module, leaf: str, scale: str) -> Tensor:
    """float32 [out, in]."""
    exponents = module.read(scale).view(torch.uint8).to(torch.int32) - 127
    return torch.ldexp(_numbers(module.read(leaf).view(torch.uint8)), exponents.repeat_interleave(_MX_INPUTS, 1))


def _mxfp4_rows(module: Module, leaf: str, scale: str) -> OwnRows:
    def make(_: int | None) -> NDArray[np.uint8]:
        octets, exponents = (module.read(each).view(torch.uint8) for each in (leaf, scale))
        return mxfp4_rows(octets.view(len(octets), -1, _MX_INPUTS // 2), exponents)

    return OwnRows("MXFP4", make)
