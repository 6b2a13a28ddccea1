"""Attention to a window and to compressed keys, by PyTorch.

What a compressed key is made of is kept by its tokens, and the key by the last of them. So a key is a row's own, as all
that the cache has: trees, rows taken back and copied prefixes need nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.attention import RowGroup, attend
from headstart.backends.torch.few_bit_rows import read_rows, write_rows
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.norms import Norm
from headstart.backends.torch.states import LayerStore
from headstart.backends.torch.window_ends import ends_of
from headstart.models.compressed_config import Compression
from headstart.models.compressed_weights import CompressedWeights
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.layers.compressed import compress, index_scores, keep_best, turn_pairs_
from headstart.models.layers.rotary import Rotation
from headstart.models.rope_frequencies import amplitude, inverse_frequencies

if TYPE_CHECKING:
    from headstart.backends.torch.mixers import MixerPass


class CompressedAttention:
    """The cache is [slot, 1, 1, number], see ``CompressedConfig.kept``."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        weights: CompressedWeights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        assert config.compressed is not None
        assert layer.rope is not None
        self.config, self.layer, self.compressed = config, layer, config.compressed
        self.rope, self.size = layer.rope, config.head_dim
        linear, norm = partial(Linear, dtype=dtype, device=device), partial(Norm.of, config, device=device)
        self.down, self.q_up, self.output = (linear(each) for each in (weights.down, weights.q_up, weights.output))
        self.lower = weights.lower.weight.to(device, dtype)
        self.lower = self.lower.view(self.compressed.groups, self.compressed.output_rank, -1)
        self.q_norm, self.kv_norm = norm(weights.q_norm), norm(weights.kv_norm)
        self.compressors = [(each.places.to(device), norm(each.norm)) for each in weights.compressors]
        self.sinks = weights.sinks.to(device)
        rope = config.ropes[layer.rope]
        frequencies, grown = inverse_frequencies(rope).to(device), amplitude(rope)
        self.rotation = partial(Rotation, frequencies=frequencies, dtype=dtype, scale=grown)
        self.made = self.compressed.made(layer.compression, self.size)
        _, self.first, self.width = self.compressed.kept(layer.compression, self.size)
        indexed = len(self.made) > 1
        self.sizes = [self.compressed.q_rank, self.size, 2 * sum(self.made), indexed * self.compressed.index_heads]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.down, self.q_up, self.output, self.lower))

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        config, size, cache, layout = self.config, self.size, store.pages, shared.layout
        state, key, made, shares = torch.split(self.down(x), self.sizes, dim=-1)
        raised, rotation = self.q_up(self.q_norm(state)), shared.rotations[self.rope]
        queries = raised[:, : config.num_heads * size].reshape(len(x), -1, size)
        queries = F.rms_norm(queries.float(), (size,), None, config.norms.eps).to(x.dtype)
        key = self.kv_norm(key)[:, None]
        for heads in (queries, key):
            turn_pairs_(heads, rotation)
        rows = F.pad(torch.cat((key[:, 0], made), dim=-1), (0, self.width - size - made.shape[-1]))[:, None, None]
        write_rows(cache, layout.new_slots, rows)
        further: list[tuple[Tensor, Tensor] | None] | None = None
        if self.layer.compression is not None:
            self._close_windows(rows, cache, shared, self.layer.compression)
            asked = None
            if self.layer.compression.chosen is not None:
                asked = raised[:, config.num_heads * size :].reshape(len(x), -1, self.compressed.index_dim)
                turn_pairs_(asked, rotation)
            further = [self._see(group, cache, self.layer.compression, asked, shares) for group in layout.groups]
        keys = cache if cache.dtype is torch.int8 else cache[..., :size]
        seen = attend(
            *(queries, keys, layout, self.layer.sight, config.score_scale),
            sinks=self.sinks,
            value_dim=size,
            further=further,
        ).view(len(x), -1, size)
        turn_pairs_(seen, rotation, back=True)
        by_group = seen.reshape(len(x), self.compressed.groups, -1)
        return self.output(torch.einsum("rgi,goi->rgo", by_group, self.lower).flatten(1))

    def _close_windows(self, rows: Tensor, cache: Tensor, shared: MixerPass, compression: Compression) -> None:
        """Make the keys of windows that end with ``rows`` of the pass, and keep them."""
        windows = shared.windows[compression.ratio]
        if not len(windows.rows):
            return
        slots, place, first = windows.slots[:, -compression.reach :], self.first, self.size
        given = _read(cache, slots.clamp(min=0), first, 2 * sum(self.made), rows.dtype)
        rotation, closed, first = self.rotation(windows.starts), rows[windows.rows], 0
        for size, (places, norm) in zip(self.made, self.compressors, strict=True):
            parts = given[..., first : first + size], given[..., first + size : first + 2 * size]
            key = norm(compress(*parts, places, slots >= 0))[:, None]
            turn_pairs_(key, rotation)
            closed[:, 0, :, place : place + key.shape[-1]] = key
            place, first = place + key.shape[-1], first + 2 * size
        write_rows(cache, shared.layout.new_slots[windows.rows], closed)

    def _see(
        self, group: RowGroup, cache: Tensor, compression: Compression, asked: Tensor | None, shares: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Compressed keys of a group's sequences, and what is added to their scores; ``asked`` [row, head, index_dim]:
        of the indexer, and the shares of its heads [row, head]."""
        view, grid = group.views[ends_of(compression.ratio)], (group.num_sequences, group.num_rows, -1)
        if not view.num_keys:
            return None
        assert isinstance(view.slots, Tensor)
        slots = view.slots.view(group.num_sequences, -1)
        mask = shares.new_zeros(len(slots), 1, group.num_rows, view.num_keys) if view.mask is None else view.mask
        if asked is not None and compression.chosen is not None and compression.chosen < view.num_keys:
            if group.rows is not None:
                asked, shares = asked[group.rows], shares[group.rows]
            keys = _read(cache, slots, self.first + self.size, self.compressed.index_dim, shares.dtype)
            scale = (self.compressed.index_dim * self.compressed.index_heads) ** -0.5
            asked = asked.reshape(*grid, self.compressed.index_dim)
            scores = index_scores(asked, keys, shares.reshape(grid).float() * scale)
            mask = keep_best(scores[:, None], mask, compression.chosen)
        return _read(cache, slots, self.first, self.size, shares.dtype), mask


def _read(cache: Tensor, slots: Tensor, first: int, size: int, dtype: torch.dtype) -> Tensor:
    """[*slots, size] some numbers of what is kept."""
    in_blocks = cache.dtype is torch.int8
    columns = slice(first, first + size)
    kept = (cache if in_blocks else cache[..., columns]).index_select(0, slots.flatten())[:, 0, 0]
    rows = read_rows(kept, first + size if in_blocks else size, dtype)
    return rows[..., -size:].view(*slots.shape, size)
