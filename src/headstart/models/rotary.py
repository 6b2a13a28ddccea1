"""Rotary position embedding: frequencies and the rotation of a pass's rows."""

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
    modeling_rope_utils.py).
    """
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    frequencies = 1.0 / rope.theta**exponents
    if factors is not None:
        frequencies = frequencies / factors.cpu()
    if rope.scaling is None:
        return frequencies
    factor = float(rope.scaling["factor"])
    if rope.scaling["rope_type"] == "linear":
        return frequencies / factor
    low, high = float(rope.scaling["low_freq_factor"]), float(rope.scaling["high_freq_factor"])
    trained = float(rope.scaling["original_max_position_embeddings"])
    turns = trained * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


class Rotation:
    """Cosines and sines for the rows of one pass."""

    def __init__(self, positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> None:
        angles = positions.float()[:, None] * frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.dim = 2 * len(frequencies)
        self._cos = torch.cat((cos, cos), dim=-1)[:, None]
        self._sin = torch.cat((-sin, sin), dim=-1)[:, None]

    def apply_(self, heads: Tensor) -> None:
        """Rotate the first ``dim`` dimensions of [row, head, head_dim] in place."""
        rotated = heads[..., : self.dim]
        halves = rotated.view(*rotated.shape[:-1], 2, self.dim // 2)
        swapped = halves.flip(-2).flatten(-2)
        rotated.mul_(self._cos).addcmul_(swapped, self._sin)
