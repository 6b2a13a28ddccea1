"""Which scheme a folder's ``quantization_config`` names, and its tensors read by it.

Older programs leave the same in a file of its own: AutoGPTQ in ``quantize_config.json``, AutoAWQ in
``quant_config.json``, NVIDIA's Model Optimizer in ``hf_quant_config.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headstart.errors import CheckpointError, meant
from headstart.models.derived import DerivedTensors, OpenWeights
from headstart.models.files import read_json
from headstart.models.locating import SETTINGS_FILES
from headstart.models.quantised.auto_round import read_auto_round
from headstart.models.quantised.awq import read_awq
from headstart.models.quantised.bitsandbytes import read_bitsandbytes
from headstart.models.quantised.compressed import read_compressed
from headstart.models.quantised.float4 import read_fp8_and_fp4, read_modelopt
from headstart.models.quantised.fp8 import read_fp8
from headstart.models.quantised.gptq import read_gptq
from headstart.models.quantised.mxfp4 import read_mxfp4
from headstart.models.quantised.parts import Found

_READERS: Mapping[str, Callable[[OpenWeights, Mapping[str, Any]], Found]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "fp8": read_fp8_and_fp4,
    "compressed-tensors": read_compressed,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_mxfp4,
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "modelopt": read_modelopt,
    "fbgemm_fp8": read_fp8,
}


_SIGNS = (".qweight", ".weight_scale")
"""What tensors are called in folders whose settings are looked for beside ``config.json``."""


def dequantised(weights: OpenWeights, config: Mapping[str, Any], directory: Path, part: bool = False) -> OpenWeights:
    """A folder's tensors with every quantised matrix as the values that it defines; as they are where none is.

    Args:
        config: of the model; its ``quantization_config`` says how.
        directory: the folder.
        part: these are some of its tensors, of which none need be quantised.

    Raises:
        CheckpointError: the scheme is not known, or the tensors are not what it promises.
    """
    settings = _settings(weights, config, directory)
    if settings is None:
        return weights
    method = _method(settings)
    if not isinstance(method, str) or method not in _READERS:
        known = meant(method, _READERS)
        raise CheckpointError(f"{directory} is quantised by {method!r:.40}, which is not read; {known}")
    if config.get("attention_projection_layout") == "fused_qkv":
        settings = {**settings, "fused_qkv": config}
    try:
        found = _READERS[method](weights, settings)
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from error
    if not found.derived:
        if part:
            return weights
        raise CheckpointError(
            f"{directory} says that it is quantised ({method}), but none of its tensors is; remove quantization_config "
            "from its config.json, or fetch it again."
        )
    return DerivedTensors(weights, found.derived, found.used)


def quantised_by(weights: OpenWeights, config: Mapping[str, Any], directory: Path) -> str | None:
    """What a folder's matrices are quantised by, as its settings name it; None: they are not.

    Raises:
        CheckpointError: the settings cannot be read.
    """
    settings = _settings(weights, config, directory)
    return None if settings is None else str(_method(settings))


def _settings(weights: OpenWeights, config: Mapping[str, Any], directory: Path) -> Any:
    settings = config.get("quantization_config")
    if not settings:
        text = config.get("text_config")
        settings = text.get("quantization_config") if isinstance(text, dict) else None
    if not settings:  # an empty object says that it is not quantised
        settings = _settings_beside(directory) if any(name.endswith(_SIGNS) for name in weights.shapes()) else None
    return settings


def _method(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return None
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return settings.get("quant_method", "bitsandbytes")
    return settings.get("quant_method")


def _settings_beside(directory: Path) -> Mapping[str, Any] | None:
    """What a file of its own says; None: there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = next((directory / name for name in SETTINGS_FILES if (directory / name).exists()), None)
    if path is None:
        return None
    found = read_json(path)
    if path.name == "quantize_config.json":
        return {"quant_method": "gptq", **found}
    if path.name == "quant_config.json":
        return {"quant_method": "awq", "bits": found.get("w_bit", 4), "version": found.get("version", "gemm")}
    own = found.get("quantization")
    return {"quant_method": "modelopt", **(own if isinstance(own, dict) else {})}
