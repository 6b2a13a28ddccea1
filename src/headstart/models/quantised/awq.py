"""AWQ folders (Lin et al., 2023, https://arxiv.org/abs/2306.00978) in the order of AutoAWQ's "gemm" version.

A matrix is [in, out], in words along its outputs: ``qweight`` int32 [in, out * bits / 32], ``qzeros`` int32 [group,
out * bits / 32], ``scales`` [group, out]. The eight levels of a word are those of outputs 0, 2, 4, 6, 1, 3, 5, 7, the
lowest bits first; of eight bits, 0, 2, 1, 3. Weight = scale * (level - zero).
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
from headstart.models.quantised.parts import Found, Module, modules, setting, unpacked
from headstart.models.quantised.rows import fits_half, integer_rows, integer_type, pairs

_PLACES = {4: [0, 4, 1, 5, 2, 6, 3, 7], 8: [0, 2, 1, 3]}
"""Where in a word each output's level is, by bits."""


def read_awq(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of an AWQ folder.

    Raises:
        CheckpointError: its bits or version are not served, or a module's tensors do not fit each other.
    """
    bits = setting(settings, "bits", 4, 4, 8)
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise CheckpointError(
            f"quantization_config: version is {version!r:.40}, but only gemm is read; use another model."
        )
    found = Found()
    for module in modules(weights, "qweight"):
        inputs, words = module.matrix("qweight")
        outputs, (groups, _) = words * 32 // bits, module.matrix("scales")
        module.require("qweight", (inputs, words), "I32")
        module.require("scales", (groups, outputs), "F16", "BF16", "F32")
        leaves = ["qweight", "scales"]
        if "qzeros" in module:
            module.require("qzeros", (groups, words), "I32")
            leaves.append("qzeros")
        if groups < 1 or inputs % groups:
            raise module.fault(f"has {groups} groups for {inputs} inputs")
        size = bits + (16 + bits) * groups / inputs
        read = partial(_matrix, module, bits, inputs // groups)
        own = partial(_own_rows, module, bits, inputs // groups)
        found.derived[module.full("weight")] = Derived((outputs, inputs), f"INT{bits}", size, read, own_rows=own)
        found.used.update(map(module.full, leaves))
    return found


def _matrix(module: Module, bits: int, group: int) -> Tensor:
    """float32 [out, in]."""
    levels = _in_order(module.read("qweight"), bits)
    scales = module.read("scales").float().repeat_interleave(group, 0)
    middle = 1 << (bits - 1)
    zeros = _in_order(module.read("qzeros"), bits).repeat_interleave(group, 0) if "qzeros" in module else middle
    return ((levels - zeros).float() * scales).T.contiguous()


def _own_rows(module: Module, bits: int, group: int) -> OwnRows | None:
    type_name = integer_type(bits, group)
    if type_name is None or not fits_half(module.read("scales")):
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        scales, levels = module.read("scales").T, _in_order(module.read("qweight"), bits).T
        middle = torch.full(scales.shape, 1 << (bits - 1))
        zeros = _in_order(module.read("qzeros"), bits).T if "qzeros" in module else middle
        return integer_rows(type_name, pairs(levels) if bits == 4 else levels.to(torch.uint8), zeros, scales)

    return OwnRows(type_name, make)


def _in_order(words: Tensor, bits: int) -> Tensor:
    """int32 [row, out]."""
    rows, count = words.shape
    return unpacked(words, bits).view(rows, count, -1)[..., _PLACES[bits]].reshape(rows, -1)
