"""Which tokens rows of latent attention see, by its indexer (DeepSeek-V3.2, section 2.1; transformers'
models/deepseek_v32, glm_moe_dsa and hy_v4). A row's choice is made of itself and of the rows before it on its path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.backends.torch.attention import RowGroup
from headstart.backends.torch.few_bit_rows import read_rows
from headstart.backends.torch.norms import Norm
from headstart.models.config import ModelConfig, Sight
from headstart.models.layers.compressed import index_scores, keep_best
from headstart.models.layers.latent import IndexRows
from headstart.models.layers.rotary import Rotation
from headstart.models.linear_weights import NormWeights


class Chooser:
    """The indexer of a layer behind its products; the cache has its keys behind the states."""

    def __init__(self, config: ModelConfig, norm: NormWeights, device: torch.device) -> None:
        latent = config.latent
        assert latent is not None
        assert latent.indexer is not None
        self._config, self._heads = latent.indexer, config.num_heads
        self._behind = latent.kv_rank + latent.rope_dim
        self._norm = Norm(norm, device, "layer", latent.indexer.norm_eps)

    def turned(self, rows: IndexRows, rotation: Rotation | None) -> IndexRows:
        """With keys that are normed, rotated as the queries are."""
        keys = self._norm(rows.keys)
        if rotation is not None:
            for heads in (rows.queries, keys[:, None]):
                rotation.apply_(heads[..., heads.shape[-1] - rotation.dim :] if self._config.turns_last else heads)
        return rows._replace(keys=keys)

    def choose(self, rows: IndexRows, cache: Tensor, group: RowGroup, sight: Sight) -> Tensor | None:
        """What a group's rows see, as a mask of ``attend``. ``cache``: [slot, 1, 1, size] with their own keys."""
        view, size = group.views[sight], self._config.dim
        if view.num_keys <= self._config.chosen:
            return view.mask
        kept = cache[view.slots] if isinstance(view.slots, slice) else cache.index_select(0, view.slots)
        keys = read_rows(kept, self._behind + size, rows.keys.dtype)[..., self._behind :]
        keys = keys.view(group.num_sequences, view.num_keys, size)
        own = [each if group.rows is None else each.index_select(0, group.rows) for each in (rows.queries, rows.shares)]
        queries, shares = (each.view(group.num_sequences, group.num_rows, *each.shape[1:]) for each in own)
        scores = index_scores(queries, keys, shares.float())
        folded = self._heads if group.folded and group.num_rows > 1 else 1
        before = torch.zeros_like(scores) if view.mask is None else view.mask[:, 0, ::folded]
        mask = keep_best(scores, before, self._config.chosen).to(rows.keys.dtype)
        return mask.repeat_interleave(folded, dim=1)[:, None]
