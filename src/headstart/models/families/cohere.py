"""Command-R of Cohere, 1 and 2: attention and MLP side by side, layer norms without bias, interleaved rotations.

Sources: the configuration and modelling files of transformers (models/cohere, cohere2); for GGUF llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from headstart.models.config import (
    FoldedConfig,
    HeadNorms,
    LayerConfig,
    ModelConfig,
    NormsConfig,
    ResidualConfig,
)
from headstart.models.families.base import Family
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.llama import (
    GGUF_LAYER,
    GGUF_LAYOUT,
    HF_LAYER,
    HF_LAYOUT,
    base_from_gguf,
    base_from_hf,
    biased,
    halves,
    windows_from_hf,
)


def _base(fields: Fields, family: str, theta: float, qk_norm: HeadNorms | None = None) -> ModelConfig:
    return base_from_hf(
        fields,
        family,
        tied=True,
        default_theta=theta,
        eps="layer_norm_eps",
        default_eps=1e-5,
        norms=NormsConfig("layer", bias=False, shared=True),
        residual=ResidualConfig(parallel=True),
        folded=FoldedConfig(logit_divisor=1 / fields.number("logit_scale", 0.0625)),
        attention=replace(biased(fields), qk_norm=qk_norm),
    )


def _cohere(fields: Fields) -> ModelConfig:
    normed = fields.flag("use_qk_norm", False)
    return _base(fields, "cohere", 500_000.0, HeadNorms("layer", own=True) if normed else None)


def _cohere2(fields: Fields) -> ModelConfig:
    config = _base(fields, "cohere2", 10_000.0)
    every = fields.integer("sliding_window_pattern", 4)
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS) if fields.has("sliding_window") else 4096
    sliding = [window is not None and (i + 1) % every != 0 for i in range(config.num_layers)]
    return _with_windows(config, windows_from_hf(fields, config.num_layers, window, sliding))


def _with_windows(config: ModelConfig, windows: list[int | None]) -> ModelConfig:
    """Layers that see everything have no positions."""
    layers = tuple(LayerConfig(window, None if window is None else 0) for window in windows)
    return replace(config, layers=layers)


def _base_gguf(fields: Fields, family: str) -> ModelConfig:
    return base_from_gguf(
        fields,
        family,
        eps="attention.layer_norm_epsilon",
        norms=NormsConfig("layer", bias=False, shared=True),
        residual=ResidualConfig(parallel=True),
        folded=FoldedConfig(logit_divisor=1 / fields.number("logit_scale", 1.0)),
    )


def _cohere_gguf(fields: Fields) -> ModelConfig:
    return _base_gguf(fields, "cohere")


def _cohere2_gguf(fields: Fields) -> ModelConfig:
    config = _base_gguf(fields, "cohere2")
    window = fields.integer("attention.sliding_window")
    return _with_windows(config, [window if (i + 1) % 4 else None for i in range(config.num_layers)])


def _norms_in_halves(weight: Tensor, config: ModelConfig) -> Tensor:
    """[head, head_dim]"""
    return halves(weight.flatten(), config).view(weight.shape)


def _divided(weight: Tensor, config: ModelConfig) -> Tensor:
    return weight / config.folded.logit_divisor


_CONVERT = {"q": halves, "k": halves, "q_norm": _norms_in_halves, "k_norm": _norms_in_halves, "final_norm": _divided}
_LAYOUT = replace(
    HF_LAYOUT, layer={role: name for role, name in HF_LAYER.items() if role != "mlp_norm"}, convert=_CONVERT
)
_GGUF_LAYOUT = replace(
    GGUF_LAYOUT, layer={role: name for role, name in GGUF_LAYER.items() if role != "mlp_norm"}, convert=_CONVERT
)

FAMILIES = (
    Family("cohere", "cohere", "command-r", _cohere, _cohere_gguf, _LAYOUT, _GGUF_LAYOUT),
    Family("cohere2", "cohere2", "cohere2", _cohere2, _cohere2_gguf, _LAYOUT, _GGUF_LAYOUT),
)
