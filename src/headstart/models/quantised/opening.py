"""Which scheme a folder's ``quantization_config`` names, and its tensors read by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headstart.errors import CheckpointError, meant
from headstart.models.derived import DerivedTensors, OpenWeights
from headstart.models.quantised.awq import read_awq
from headstart.models.quantised.bitsandbytes import read_bitsandbytes
from headstart.models.quantised.compressed import read_compressed
from headstart.models.quantised.fp8 import read_fp8
from headstart.models.quantised.gptq import read_gptq
from headstart.models.quantised.mxfp4 import read_mxfp4
from headstart.models.quantised.parts import Found

_READERS: Mapping[str, Callable[[OpenWeights, Mapping[str, Any]], Found]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "fp8": read_fp8,
    "compressed-tensors": read_compressed,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_mxfp4,
}


def dequantised(weights: OpenWeights, config: Mapping[str, Any], source: str) -> OpenWeights:
    """A folder's tensors with every quantised matrix as the values that it defines; as they are where none is.

    Args:
        config: of the model; its ``quantization_config`` says how.
        source: the folder, for messages.

    Raises:
        CheckpointError: the scheme is not known, or the tensors are not what it promises.
    """
    settings = config.get("quantization_config")
    if settings is None:
        text = config.get("text_config")
        settings = text.get("quantization_config") if isinstance(text, dict) else None
    if settings is None:
        return weights
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method is None and isinstance(settings, dict) and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        method = "bitsandbytes"
    if not isinstance(method, str) or method not in _READERS:
        known = meant(method, _READERS)
        raise CheckpointError(f"{source} is quantised by {method!r:.40}, which is not read; {known}")
    try:
        found = _READERS[method](weights, settings)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from error
    if not found.derived:
        raise CheckpointError(
            f"{source} says that it is quantised ({method}), but none of its tensors is; remove quantization_config "
            "from its config.json, or fetch it again."
        )
    return DerivedTensors(weights, found.derived, found.used)
