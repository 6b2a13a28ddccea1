"""Which tokens rows of latent attention see, by its indexer (DeepSeek-V3.2, section 2.1; transformers'
models/deepseek_v32, glm_moe_dsa, hy_v4 and glm5_next). A row's choice is made of itself and of the rows before it on
its path.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.attention import KeyView, RowGroup
from headstart.backends.torch.few_bit_rows import read_rows, write_rows
from headstart.backends.torch.norms import Norm
from headstart.backends.torch.window_ends import Windows, ends_of
from headstart.models.config import ModelConfig, Sight
from headstart.models.layers.compressed import compress, index_scores, keep_best
from headstart.models.layers.latent import IndexRows
from headstart.models.layers.rotary import Rotation
from headstart.models.linear_weights import NormWeights


class Chooser:
    """The indexer of a layer behind its products; the cache has its keys behind the states."""

    def __init__(self, config: ModelConfig, norm: NormWeights, places: Tensor | None, device: torch.device) -> None:
        latent = config.latent
        assert latent is not None
        assert latent.indexer is not None
        self._config, self._heads = latent.indexer, config.num_heads
        self._behind = latent.kv_rank + latent.rope_dim
        self._norm = Norm(norm, device, "layer", latent.indexer.norm_eps)
        self._places = None if places is None else places.to(device)

    def turned(self, rows: IndexRows, rotation: Rotation | None) -> IndexRows:
        """With keys that are normed, rotated as the queries are."""
        keys = self._norm(rows.keys)
        if rotation is not None:
            for heads in (rows.queries, keys[:, None]):
                rotation.apply_(heads[..., heads.shape[-1] - rotation.dim :] if self._config.turns_last else heads)
        return rows._replace(keys=keys)

    def kept(self, rows: IndexRows) -> Tensor:
        """[row, number] of the cache: keys, or what mixtures are made of and room for these."""
        if self._places is None:
            return rows.keys
        return F.pad(torch.cat((rows.keys, rows.weights), dim=-1), (0, self._config.dim))

    def close_pools(self, rows: Tensor, cache: Tensor, windows: Mapping[int, Windows], new_slots: Tensor) -> None:
        """Mix the keys whose last tokens are among ``rows`` [row, number] of the pass, and keep them."""
        ends, size = windows.get(self._config.pool), self._config.dim
        if self._places is None or ends is None or not len(ends.rows):
            return
        slots = ends.slots[:, -self._config.pool :]
        kept = cache.index_select(0, slots.clamp(min=0).flatten())[:, 0, 0]
        given = read_rows(kept, self._behind + 2 * size, rows.dtype)[:, self._behind :].view(*slots.shape, -1)
        mixed = compress(given[..., :size], given[..., size:], self._places, slots >= 0)
        closed = torch.cat((rows[ends.rows, : self._behind + 2 * size], mixed), dim=-1)
        write_rows(cache, new_slots[ends.rows], closed[:, None, None])

    def choose(self, rows: IndexRows, cache: Tensor, group: RowGroup, sight: Sight, positions: Tensor) -> Tensor | None:
        """What a group's rows see, as a mask of ``attend``. ``cache``: [slot, 1, 1, size] with their own keys.
        ``positions``: of all rows."""
        whole, size, pool = group.views[sight], self._config.dim, self._config.pool
        if whole.num_keys <= self._config.chosen * pool:
            return whole.mask
        view, behind = whole, self._behind
        if pool > 1:
            view, behind = group.views[ends_of(pool)], self._behind + 2 * size
        kept = cache[view.slots] if isinstance(view.slots, slice) else cache.index_select(0, view.slots)
        keys = read_rows(kept, behind + size, rows.keys.dtype)[..., behind:]
        keys = keys.view(group.num_sequences, view.num_keys, size)
        own = [each if group.rows is None else each.index_select(0, group.rows) for each in (rows.queries, rows.shares)]
        queries, shares = (each.view(group.num_sequences, group.num_rows, *each.shape[1:]) for each in own)
        scores = index_scores(queries, keys, shares.float())
        folded = self._heads if group.folded and group.num_rows > 1 else 1
        before = torch.zeros_like(scores) if view.mask is None else view.mask[:, 0, :: folded if pool == 1 else 1]
        mask = keep_best(scores, before, self._config.chosen).to(rows.keys.dtype)
        if pool > 1:
            of_rows = positions if group.rows is None else positions[group.rows]
            seen = _seen_pools(mask == 0, view, whole, of_rows.view(mask.shape[:2]), pool)
            mask = mask.new_zeros(seen.shape) if whole.mask is None else whole.mask[:, 0, ::folded]
            mask = mask.masked_fill(~seen, -torch.inf)
        return mask.repeat_interleave(folded, dim=1)[:, None]


def _seen_pools(chosen: Tensor, ends: KeyView, tokens: KeyView, positions: Tensor, pool: int) -> Tensor:
    """bool [sequence, row, token] whether rows at ``positions`` [sequence, row] see tokens: those of the mixtures
    ``chosen`` [sequence, row, end], and those behind a row's last one."""
    assert ends.distances is not None
    assert tokens.distances is not None
    own = positions[..., None]
    of_ends, pools = (own - ends.distances).clamp(min=0) // pool, (own - tokens.distances).clamp(min=0) // pool
    count = max(int(pools.max()), int(of_ends.max())) + 1
    seen = chosen.new_zeros((*chosen.shape[:2], count), dtype=torch.int8)
    seen.scatter_reduce_(-1, of_ends, chosen.to(torch.int8), "amax")
    return (seen.gather(-1, pools) > 0) | (pools >= (own + 1) // pool)
