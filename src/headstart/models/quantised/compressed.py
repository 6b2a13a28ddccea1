"""Folders of the package compressed-tensors (llm-compressor), as vLLM reads them.

"pack-quantized": ``weight_packed`` int32 [out, in * bits / 32], levels less their lowest (-8, -128) as unsigned
numbers, the lowest bits first; ``weight_shape`` [2]; ``weight_scale`` [out, group]; ``weight_zero_point`` int32 [out *
bits / 32, group] packed along outputs, where there are any; ``weight_g_idx`` [in] the group of each input, where they
are mixed. "int-quantized" and "naive-quantized": ``weight`` int8 [out, in]. Weight = scale * (level - zero).
"float-quantized": float8, see ``fp8``. 4-bit floating-point numbers: see ``float4``.
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

from headstart.errors import CheckpointError
from headstart.models.derived import Derived, OpenWeights, OwnRows
from headstart.models.quantised.float4 import add_mxfp4, add_nvfp4
from headstart.models.quantised.fp8 import TYPES, add_fp8
from headstart.models.quantised.parts import Found, Module, modules, unpacked
from headstart.models.quantised.rows import byte_row_type, byte_rows, bytes_of, fits_half, integer_rows, integer_type

_FLOAT4_FORMATS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", *_FLOAT4_FORMATS)
_IGNORED = ("input_scale", "input_zero_point", "weight_g_idx", "weight_zero_point", "weight_scale", "weight_shape")


def read_compressed(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of such a folder.

    Raises:
        CheckpointError: a format that is not served, or a module's tensors do not fit each other.
    """
    groups = settings.get("config_groups")
    groups = [each for each in groups.values() if isinstance(each, dict)] if isinstance(groups, dict) else []
    formats = {settings.get("format"), *(group.get("format") for group in groups)}
    if unknown := formats - {None, *_FORMATS}:
        raise CheckpointError(
            f"quantization_config: format is {unknown.pop()!r:.40}, but only {', '.join(_FORMATS)} are read; use "
            "another model."
        )
    schemes = [group["weights"] for group in groups if isinstance(group.get("weights"), dict)]
    found = Found()
    for module in modules(weights, "weight_packed"):
        if module.stored_type("weight_packed") == "I32":
            _add_packed(found, module, schemes)
        elif "weight_global_scale" in module:
            add_nvfp4(found, module, "weight_packed", "weight_global_scale", divides=True)
        else:
            add_mxfp4(found, module)
    for module in modules(weights, "weight"):
        if "weight_scale" not in module:
            continue
        stored = weights.stored(module.full("weight")).type
        if stored in TYPES:
            block = next((each["block_structure"] for each in schemes if each.get("block_structure")), None)
            add_fp8(found, module, "weight_scale", block)
        elif stored == "I8":
            _add_bytes(found, module)
    return found


def _add_packed(found: Found, module: Module, schemes: list[dict[str, Any]]) -> None:
    outputs, words = module.matrix("weight_packed")
    module.require("weight_packed", (outputs, words), "I32")
    module.require("weight_shape", (2,), "I64", "I32")
    shape = tuple(map(int, module.read("weight_shape").tolist()))
    inputs = shape[1]
    widths = {scheme.get("num_bits", 4) for scheme in schemes} & {4, 8}
    fitting = [bits for bits in widths or {4, 8} if -(-inputs * bits // 32) == words]
    if shape[0] != outputs or len(fitting) != 1:
        raise module.fault(f"has {words} words in a row for {list(shape)} weights")
    (bits,) = fitting
    _, groups = module.matrix("weight_scale")
    module.require("weight_scale", (outputs, groups), "F16", "BF16", "F32")
    if "weight_zero_point" in module:
        module.require("weight_zero_point", (-(-outputs * bits // 32), groups), "I32")
    if "weight_g_idx" in module:
        module.require("weight_g_idx", (inputs,), "I32", "I64")
    elif groups < 1 or inputs % groups:
        raise module.fault(f"has {groups} groups for {inputs} inputs")
    size = bits + 16 * groups / inputs
    read = partial(_packed_matrix, module, bits, inputs)
    own = partial(_packed_rows, module, bits, inputs)
    found.derived[module.full("weight")] = Derived((outputs, inputs), f"INT{bits}", size, read, own_rows=own)
    found.used.update(module.full(leaf) for leaf in ("weight_packed", *_IGNORED) if leaf in module)


def _packed_matrix(module: Module, bits: int, inputs: int) -> Tensor:
    """float32 [out, in]."""
    levels = unpacked(module.read("weight_packed"), bits)[:, :inputs]
    scales = module.read("weight_scale").float()
    outputs, groups = scales.shape
    if "weight_g_idx" in module:
        of_group = module.read("weight_g_idx").long()
        if int(of_group.min()) < 0 or int(of_group.max()) >= groups:
            raise module.fault("has weight_g_idx that names groups which are not there")
    else:
        of_group = torch.arange(inputs) // (inputs // groups)
    zeros = _zeros(module, bits, outputs, groups)
    return (levels - zeros[:, of_group]).float() * scales[:, of_group]


def _zeros(module: Module, bits: int, outputs: int, groups: int) -> Tensor:
    """int32 [out, group]"""
    if "weight_zero_point" in module:
        return unpacked(module.read("weight_zero_point").T, bits).T[:outputs]
    return torch.full((outputs, groups), 1 << (bits - 1), dtype=torch.int32)


def _packed_rows(module: Module, bits: int, inputs: int) -> OwnRows | None:
    outputs, groups = module.matrix("weight_scale")
    type_name = integer_type(bits, inputs // groups)
    scales = module.read("weight_scale")
    if type_name is None or "weight_g_idx" in module or not fits_half(scales):
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        levels = bytes_of(module.read("weight_packed"))[:, : inputs * bits // 8]
        return integer_rows(type_name, levels, _zeros(module, bits, outputs, groups), module.read("weight_scale"))

    return OwnRows(type_name, make)


def _add_bytes(found: Found, module: Module) -> None:
    shape, scales = module.matrix("weight"), module.shape("weight_scale")
    outputs, inputs = shape
    groups = scales[-1] if len(scales) == 2 and math.prod(scales) > outputs else 1
    if scales not in ((), (1,), (1, 1), (outputs,), (outputs, 1), (outputs, groups)) or inputs % groups:
        raise module.fault(f"has scales {list(scales)}, which fit its weights {list(shape)} in no known way")
    module.require("weight_scale", scales, "F16", "BF16", "F32")
    if "weight_zero_point" in module:
        module.require("weight_zero_point", scales)
    size = 8 + 16 * math.prod(scales) / math.prod(shape)
    read = partial(_byte_matrix, module, inputs // groups)
    own = partial(_byte_rows, module, inputs // groups)
    found.derived[module.full("weight")] = Derived(shape, "INT8", size, read, own_rows=own)
    found.used.update(module.full(leaf) for leaf in _IGNORED if leaf in module)


def _byte_matrix(module: Module, group: int) -> Tensor:
    """float32 [out, in]."""
    levels = module.read("weight").float()

    def spread(leaf: str) -> Tensor:
        values = module.read(leaf).float()
        values = values.reshape(-1, 1) if values.ndim < 2 else values
        return values.repeat_interleave(group, 1) if values.shape[1] > 1 else values

    if "weight_zero_point" in module:
        levels = levels - spread("weight_zero_point")
    return levels * spread("weight_scale")


def _byte_rows(module: Module, group: int) -> OwnRows | None:
    if "weight_zero_point" in module:
        return None
    in_groups = integer_type(8, group) if fits_half(module.read("weight_scale")) else None
    type_name = byte_row_type(group) or in_groups
    if type_name is None:
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        levels, scales = module.read("weight"), module.read("weight_scale").reshape(-1, 1)
        scales = scales.view(len(levels), -1) if len(scales) > 1 else scales.expand(len(levels), 1)
        if type_name != in_groups:
            return byte_rows(levels, scales)
        return integer_rows(type_name, levels.view(torch.uint8) ^ 128, torch.full(scales.shape, 128), scales)

    return OwnRows(type_name, make)
