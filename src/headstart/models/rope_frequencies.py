"""Rotary position embedding: what the frequencies of a description are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headstart.models.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, factors: Tensor | None = None) -> Tensor:
    """float32 [rope.dim / 2] angle per position of each rotated pair, scaling applied.

    ``factors``: ``DecoderWeights.rope_factors``, divides them. Pair j turns by theta^(-2j / dim) a position
    (RoFormer, section 3.2.2); "linear" divides all by a factor; "llama3" divides those whose wavelength exceeds
    the trained context by the factor and blends in between (Llama 3.1 release notes; transformers,
    modeling_rope_utils.py); "yarn" does so by pairs, between those that turn ``beta_fast`` and ``beta_slow`` times
    within the trained context (Peng et al. 2023, section 3.2), and scales the rotation (``amplitude``); "longrope"
    divides each by a factor of its own (Ding et al. 2024) and scales the rotation, too.
    """
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    frequencies = 1.0 / rope.theta**exponents
    if factors is not None:
        frequencies = frequencies / factors.cpu()
    if rope.factors:
        frequencies = frequencies / torch.tensor(rope.factors)
    if rope.scaling is None or rope.scaling["rope_type"] == "longrope":
        return frequencies
    factor = float(rope.scaling["factor"])
    if rope.scaling["rope_type"] == "linear":
        return frequencies / factor
    if rope.scaling["rope_type"] == "yarn":
        kept = 1 - _yarn_ramp(rope)
        return frequencies / factor * (1 - kept) + frequencies * kept
    low, high = float(rope.scaling["low_freq_factor"]), float(rope.scaling["high_freq_factor"])
    trained = float(rope.scaling["original_max_position_embeddings"])
    turns = trained * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


def _yarn_ramp(rope: RopeConfig) -> Tensor:
    """[rope.dim / 2] from 0, a pair that keeps its frequency, to 1, one whose frequency is divided by the factor."""
    assert rope.scaling is not None
    trained = float(rope.scaling["original_max_position_embeddings"])

    def pair_that_turns(times: float) -> float:
        return rope.dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = (pair_that_turns(float(rope.scaling[name])) for name in ("beta_fast", "beta_slow"))
    if rope.scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    pairs = torch.arange(rope.dim // 2, dtype=torch.float32)
    return ((pairs - low) / (high - low or 0.001)).clamp(0, 1)


def amplitude(rope: RopeConfig) -> float:
    """What cosines and sines are multiplied by: 1 but for "yarn" and "longrope", whose queries and keys grow with the
    context."""
    return 1.0 if rope.scaling is None else float(rope.scaling.get("attention_factor", 1.0))
