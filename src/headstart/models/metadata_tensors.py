"""Numbers of layers that GGUF files hold in their metadata, as tensors like others.

llama.cpp's converter (conversion/apertus.py) writes what a layer's xIELU has learnt there: an array for each of its
four numbers, with an entry for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from headstart.models.derived import Derived, DerivedTensors, OpenWeights

_ARRAYS = ("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps")
_MOST = 4096
"""Layers of a model; a damaged file may promise any number."""


def with_metadata_tensors(weights: OpenWeights, metadata: Mapping[str, Any]) -> OpenWeights:
    """The file's tensors, and for entry ``i`` of such an array one called ``blk.{i}.name``."""
    derived = {}
    for name in _ARRAYS:
        values = metadata.get(name)
        if not isinstance(values, list) or len(values) > _MOST or not all(isinstance(each, float) for each in values):
            continue
        for index, value in enumerate(values):
            derived[f"blk.{index}.{name}"] = Derived((1,), "METADATA", 32.0, partial(torch.full, (1,), value))
    if not derived:
        return weights
    return DerivedTensors(weights, derived, also=str({name: each.read() for name, each in derived.items()}))
