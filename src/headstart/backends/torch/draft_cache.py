"""Keys and values of a head's layers by PyTorch, and attention over them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.heads.head_pass import DraftCache


class TorchDraftCache(DraftCache):
    """Rows in one tensor that grows, [layer, key or value, kv_head, row, head_dim]."""

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = torch.zeros((num_layers, 2, num_kv_heads, 0, head_dim), dtype=dtype, device=device)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's next rows [row, kv_head, head_dim], which count once ``rows`` says so; all of its keys and
        values so far, [kv_head, row, head_dim]."""
        end = self.rows + len(keys)
        self._reserve(end)
        ours = self.data[layer]
        ours[0, :, self.rows : end] = keys.transpose(0, 1)
        ours[1, :, self.rows : end] = values.transpose(0, 1)
        return ours[0, :, :end], ours[1, :, :end]

    def write_layers(self, keys: Tensor, values: Tensor) -> None:
        """The same for all layers at once: [row, layer, kv_head, head_dim]."""
        end = self.rows + len(keys)
        self._reserve(end)
        self.data[:, 0, :, self.rows : end] = keys.permute(1, 2, 0, 3)
        self.data[:, 1, :, self.rows : end] = values.permute(1, 2, 0, 3)

    @torch.inference_mode()
    def extend(self, other: DraftCache, first: int, count: int) -> None:
        """See ``DraftCache``."""
        assert isinstance(other, TorchDraftCache)
        end = self.rows + count
        self._reserve(end)
        self.data[..., self.rows : end, :] = other.data[..., first : first + count, :]
        self.rows = end

    def release(self) -> None:
        self.rows, self.data = 0, self.data[..., :0, :]

    def _reserve(self, rows: int) -> None:
        held = self.data.shape[-2]
        if rows > held:
            self.data = F.pad(self.data, (0, 0, 0, max(rows, 2 * held) - held))


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """What rows of one sequence see.

    Args:
        queries: [row, head, head_dim].
        keys: [kv_head, key, head_dim].
        values: likewise.
        mask: bool [row, key]; None: every row sees every key.

    Returns:
        [row, head * head_dim].
    """
    rows, heads, head_dim = queries.shape
    kv_heads = len(keys)
    shared = heads // kv_heads
    # The heads that share a key-value head stand side by side as rows of one product.
    grid = queries.view(rows, kv_heads, shared, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head_dim)
    mask = None if mask is None else mask.repeat(shared, 1)
    mixed = F.scaled_dot_product_attention(grid, keys[None], values[None], mask)
    return mixed.view(kv_heads, shared, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, -1)
