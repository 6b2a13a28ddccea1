"""GPTQ folders (Frantar et al., 2022, https://arxiv.org/abs/2210.17323), as AutoGPTQ and GPTQModel write them.

A matrix is [in, out], in words along its inputs: ``qweight`` int32 [in * bits / 32, out], ``qzeros`` int32 [group, out
* bits / 32], ``scales`` [group, out], ``g_idx`` int32 [in] the group of each input (``desc_act`` mixes them). Weight =
scale * (level - zero). In the format "gptq" a zero is stored less one, in "gptq_v2" as it is. Modules may have bits of
their own (``dynamic``, GPTQModel: by regular expressions, "+:" before those that change something).
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
from headstart.models.quantised.parts import Found, Module, modules, own_settings, setting, unpacked
from headstart.models.quantised.rows import bytes_of, fits_half, integer_rows, integer_type, pairs

_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero."""


def read_gptq(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of a GPTQ folder.

    Raises:
        CheckpointError: its bits or format are not served, or a module's tensors do not fit each other.
    """
    kind = settings.get("checkpoint_format", "gptq")
    if kind not in _FORMATS:
        raise CheckpointError(
            f"quantization_config: checkpoint_format is {kind!r:.40}, but only {' and '.join(_FORMATS)} are read; use "
            "another model."
        )
    found = Found()
    for module in modules(weights, "qweight"):
        bits = setting(own_settings(settings, "dynamic", module.name), "bits", 4, 2, 3, 4, 8)
        words, outputs = module.matrix("qweight")
        if words * 32 % bits:
            raise module.fault(f"has {words} words along its inputs, which hold no whole number of {bits} bits")
        inputs, (groups, _) = words * 32 // bits, module.matrix("scales")
        module.require("qweight", (words, outputs), "I32")
        module.require("scales", (groups, outputs), "F16", "BF16", "F32")
        module.require("qzeros", (groups, outputs * bits // 32), "I32")
        leaves = ["qweight", "qzeros", "scales"]
        if "g_idx" in module:
            module.require("g_idx", (inputs,), "I32", "I64")
            leaves.append("g_idx")
        elif groups < 1 or inputs % groups:
            raise module.fault(f"has {groups} groups for {inputs} inputs")
        size = bits + (16 + bits) * groups / inputs
        read = partial(_matrix, module, bits, _FORMATS[kind], inputs)
        own = partial(_own_rows, module, bits, _FORMATS[kind], inputs)
        found.derived[module.full("weight")] = Derived((outputs, inputs), f"INT{bits}", size, read, own_rows=own)
        found.used.update(map(module.full, leaves))
    return found


def _matrix(module: Module, bits: int, added: int, inputs: int) -> Tensor:
    """float32 [out, in]."""
    levels = unpacked(module.read("qweight").T, bits)
    zeros = _zeros(module, bits, added)
    scales = module.read("scales").float()
    if "g_idx" in module:
        of_group = module.read("g_idx").long()
        if int(of_group.min()) < 0 or int(of_group.max()) >= len(scales):
            raise module.fault("has g_idx that names groups which are not there")
    else:
        of_group = torch.arange(inputs) // (inputs // len(scales))
    return (levels - zeros.T[:, of_group]).float() * scales.T[:, of_group]


def _zeros(module: Module, bits: int, added: int) -> Tensor:
    """int32 [group, out]; a stored zero of all ones stands for none: what is added runs over."""
    return (unpacked(module.read("qzeros"), bits) + added) & ((1 << bits) - 1)


def _own_rows(module: Module, bits: int, added: int, inputs: int) -> OwnRows | None:
    scales = module.read("scales")
    group = inputs // len(scales)
    type_name = integer_type(bits, group)
    if type_name is None or inputs % len(scales) or not fits_half(scales):
        return None
    if "g_idx" in module and not torch.equal(module.read("g_idx").long(), torch.arange(inputs) // group):
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        words = module.read("qweight")
        if bits < 4:
            levels = pairs(unpacked(words.T, bits))
        else:
            levels = bytes_of(words).view(*words.shape, 4).transpose(0, 1).flatten(1)
        return integer_rows(type_name, levels, _zeros(module, bits, added).T, module.read("scales").T)

    return OwnRows(type_name, make)
