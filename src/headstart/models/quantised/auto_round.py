"""Folders of Intel's AutoRound (Cheng et al., 2023, https://arxiv.org/abs/2309.05516): GPTQ's or AWQ's tensors under a
configuration of their own.

``packing_format`` names the order, ``extra_config`` what is else in modules, by their names or by regular expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.errors import CheckpointError
from headstart.models.derived import OpenWeights
from headstart.models.quantised.awq import read_awq
from headstart.models.quantised.gptq import read_gptq
from headstart.models.quantised.parts import Found

_GPTQ_FORMATS = {"auto_gptq": "gptq", "gptqmodel": "gptq_v2"}
"""As GPTQ's ``checkpoint_format``."""


def read_auto_round(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of such a folder.

    Raises:
        CheckpointError: a format that is not served, or a module's tensors do not fit each other.
    """
    packing = str(settings.get("packing_format", "auto_round:auto_gptq"))
    name = packing.removeprefix("auto_round:")
    if settings.get("data_type", "int") != "int" or name not in (*_GPTQ_FORMATS, "auto_awq"):
        raise CheckpointError(
            f"quantization_config: packing_format is {packing!r:.40} and data_type {settings.get('data_type')!r:.20}, "
            f"but only {', '.join(_GPTQ_FORMATS)} and auto_awq of int are read; use another model."
        )
    if name == "auto_awq":
        return read_awq(weights, {**settings, "version": "gemm"})
    own = {"checkpoint_format": _GPTQ_FORMATS[name], "dynamic": settings.get("extra_config")}
    return read_gptq(weights, {**settings, **own})
