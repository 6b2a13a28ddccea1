"""The rotation of rows that gradients flow through."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.models.config import RopeConfig
from headstart.models.rope_frequencies import amplitude, inverse_frequencies


class RotaryTable:
    """Cosines and sines of positions, as far as they are asked for: the target's reach, not the training's."""

    def __init__(
        self, rope: RopeConfig, dtype: torch.dtype, device: torch.device | str = "cpu", factors: Tensor | None = None
    ) -> None:
        self._frequencies = inverse_frequencies(rope, factors).to(device)
        self._scale = amplitude(rope)
        self._dtype = dtype
        self._dim = rope.dim
        self._tables = self._compute(1024)

    def rotate(self, heads: Tensor, positions: Tensor, reach: int) -> Tensor:
        """Rotate [..., head, head_dim] at ``positions`` [...], all of them below ``reach``."""
        if reach > self._tables.shape[1]:
            self._tables = self._compute(2 * reach)
        cos, sin = self._tables[:, positions].unsqueeze(-2)
        rotated = heads[..., : self._dim]
        first, second = rotated.chunk(2, dim=-1)
        turned = rotated * cos + torch.cat((-second, first), dim=-1) * sin
        return turned if self._dim == heads.shape[-1] else torch.cat((turned, heads[..., self._dim :]), dim=-1)

    def _compute(self, positions: int) -> Tensor:
        angles = torch.arange(positions, device=self._frequencies.device).float()[:, None] * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return torch.stack((angles.cos(), angles.sin())).mul(self._scale).to(self._dtype)
