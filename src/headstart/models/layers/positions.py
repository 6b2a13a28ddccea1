"""How encoders and their decoders tell places apart: biases by distance, and computed tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headstart.models.encoder_decoder import Positions, RelativeBias

_FIRST = 2
"""What XGLM counts its positions from."""


def distance_buckets(distances: Tensor, bias: RelativeBias, both_sides: bool) -> Tensor:
    """The bucket of each distance, int64 of the same shape (Raffel et al. 2020, section 2.1; transformers' T5).

    Half of the buckets hold one distance each, the others logarithmically more and more, up to ``max_distance``.

    Args:
        distances: int64, how far the key stands before the row; negative: behind it.
        both_sides: keys behind the row have buckets of their own, as in an encoder; else they count as distance 0.
    """
    count = bias.buckets // 2 if both_sides else bias.buckets
    offset = (distances < 0) * count if both_sides else 0
    far = distances.abs() if both_sides else distances.clamp(min=0)
    exact = count // 2
    scaled = torch.log(far.clamp(min=1).float() / exact) / math.log(bias.max_distance / exact) * (count - exact)
    wide = (exact + scaled.long()).clamp(max=count - 1)
    return offset + torch.where(far < exact, far, wide)


def counted_sinusoids(positions: Tensor, size: int) -> Tensor:
    """float32 [row, size] what a decoder with ``sinusoid_positions`` adds to the rows at ``positions`` [row]."""
    return sinusoids_at("tensor2tensor", positions + _FIRST, size)


def sinusoids(kind: Positions, count: int, size: int) -> Tensor:
    """float32 [count, size]: sines, then cosines, as ``Positions`` says; rounded where transformers rounds."""
    return sinusoids_at(kind, torch.arange(count), size)


def sinusoids_at(kind: Positions, positions: Tensor, size: int) -> Tensor:
    """The same of some ``positions`` [row]: float32 [row, size]."""
    device = positions.device
    if kind == "sinusoid":
        frequencies = 10_000.0 ** (-2 * torch.arange((size + 1) // 2, dtype=torch.float64, device=device) / size)
    else:
        half = size // 2
        frequencies = torch.exp(torch.arange(half, device=device).float() * -(math.log(10_000) / max(half - 1, 1)))
    angles = positions.to(frequencies.dtype)[:, None] * frequencies
    table = torch.cat((angles.sin(), angles.cos()), dim=1)[:, :size]
    return torch.nn.functional.pad(table, (0, size - table.shape[1])).float()
