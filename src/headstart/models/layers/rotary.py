"""Rotary position embedding: the rotation of rows."""

from __future__ import annotations

import torch
from torch import Tensor


class Rotation:
    """Cosines and sines for the rows of one pass, times ``scale``."""

    def __init__(self, positions: Tensor, frequencies: Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
        angles = positions.float()[:, None] * frequencies
        cos, sin = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
        self.dim = 2 * len(frequencies)
        self._cos = torch.cat((cos, cos), dim=-1)[:, None]
        self._sin = torch.cat((-sin, sin), dim=-1)[:, None]

    def apply_(self, heads: Tensor, back: bool = False) -> None:
        """Rotate the first ``dim`` dimensions of [row, head, head_dim] in place, or turn them back."""
        rotated = heads[..., : self.dim]
        halves = rotated.view(*rotated.shape[:-1], 2, self.dim // 2)
        swapped = halves.flip(-2).flatten(-2)
        rotated.mul_(self._cos).addcmul_(swapped, self._sin, value=-1 if back else 1)
