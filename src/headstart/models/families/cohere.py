"""Command-R of Cohere, 1 and 2: attention and MLP side by side, layer norms without bias, interleaved rotations.

Sources: the configuration and modelling files of transformers (models/cohere, cohere2); for GGUF llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from headstart.models.config import (
    FoldedConfig,
    HeadNorms,
    ModelConfig,
    NormsConfig,
    ResidualConfig,
)
from headstart.models.families.base import Family, Gguf
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYOUT
from headstart.models.families.llama import HF_LAYOUT, base_of, biased, halves, windowed


def _base(fields: Fields, family: str, theta: float, qk_norm: HeadNorms | None = None) -> ModelConfig:
    return base_of(
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
    # Layers that see everything have no positions.
    return windowed(fields, config, window, lambda index: (index + 1) % every != 0, full=None)


def _norms_in_halves(weight: Tensor, config: ModelConfig) -> Tensor:
    """[head, head_dim]"""
    return halves(weight.flatten(), config).view(weight.shape)


def _divided(weight: Tensor, config: ModelConfig) -> Tensor:
    return weight / config.folded.logit_divisor


_CONVERT = {"q": halves, "k": halves, "q_norm": _norms_in_halves, "k_norm": _norms_in_halves, "final_norm": _divided}
_LAYOUT = replace(HF_LAYOUT, convert=_CONVERT)
_GGUF_LAYOUT = replace(GGUF_LAYOUT, convert=_CONVERT)

FAMILIES = (
    Family("cohere", "cohere", _cohere, _LAYOUT, Gguf("command-r", _GGUF_LAYOUT, defaults={"logit_scale": 1.0})),
    Family("cohere2", "cohere2", _cohere2, _LAYOUT, Gguf("cohere2", _GGUF_LAYOUT, defaults={"logit_scale": 1.0})),
)
