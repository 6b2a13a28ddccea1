"""Medusa and blockwise heads with packed matrices: PyTorch's, or the native library's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.head_kit import Kit
from headstart.drafting.heads.tables import TargetTables
from headstart.models.linear_weights import LinearWeights
from headstart_lab.methods.medusa.head import ParallelHeads, token_rows


class ParallelPass:
    """Runs the heads with packed matrices.

    Args:
        head: weights, copied.
        tables: the target's; used where the heads read tokens, or have no output of their own.
        kit: what it is computed with.
    """

    @torch.inference_mode()
    def __init__(self, head: ParallelHeads, tables: TargetTables, kit: Kit) -> None:
        self.config = config = head.config
        self._kit = kit
        self.target_ids = head.target_ids.cpu()
        linear = kit.linear
        if config.own_blocks:
            self._blocks = [
                [linear(LinearWeights(block.weight, block.bias)) for block in depth] for depth in head.blocks_by_depth()
            ]
            self._maps = (
                [linear(LinearWeights(last.weight)) for last in head.output_maps()] if config.output_maps else []
            )
            if config.reads_token:
                self._embedding = tables.embedding.detach().to(kit.device, torch.bfloat16)
                weight = torch.cat([of_tokens.weight for of_tokens in head.maps_of_tokens()])
                self._token_maps = linear(LinearWeights(weight))
        else:
            self._wide = linear(LinearWeights(head.wide.weight, head.wide.bias))
            self._narrow = linear(LinearWeights(head.narrow.weight, head.narrow.bias))
        if config.own_heads:
            self._heads = [linear(LinearWeights(weight)) for weight in head.own_outputs()]
        else:
            self._heads = [linear(LinearWeights(tables.head[head.target_ids.to(tables.head.device)]))]

    @property
    def nbytes(self) -> int:
        """Of its matrices, and of its copy of the embedding if it has one."""
        if self.config.own_blocks:
            layers = [*(block for depth in self._blocks for block in depth), *self._maps]
            if self.config.reads_token:
                layers.append(self._token_maps)
        else:
            layers = [self._wide, self._narrow]
        copied = self._embedding.nbytes if self.config.reads_token else 0
        return copied + sum(part.nbytes for part in (*layers, *self._heads))

    @torch.inference_mode()
    def logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """What is said after each state.

        Args:
            hidden: [row, hidden] states of the target after its final norm.
            tokens: int64 [row] the tokens after them.

        Returns:
            float32 [row, slot, draft vocab].
        """
        config = self.config
        x, tokens = hidden.to(self._kit.device, self._kit.dtype), tokens.to(self._kit.device)
        if config.own_blocks:
            slots = x.unsqueeze(1).expand(-1, config.slots, -1)
            if config.reads_token:
                rows = token_rows(self._embedding, tokens).to(self._kit.dtype)
                slots = slots + self._token_maps(rows).view(len(x), config.slots, -1)
            for depth in self._blocks:
                slots = slots + F.silu(_each(depth, slots))
            if config.output_maps:
                slots = _each(self._maps, slots)
        else:
            slots = x.unsqueeze(1) + self._narrow(F.relu(self._wide(x))).view(len(x), config.slots, -1)
        if config.own_heads:
            return _each(self._heads, slots).float()
        return self._heads[0](slots.flatten(0, 1)).float().view(len(x), config.slots, -1)

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The likeliest tokens of [row, slot, draft vocab], the likeliest first.

        Returns:
            Log-probabilities and target ids, [row, slot, rank] each.
        """
        log_probs, ids = self._kit.best(logits.flatten(0, 1), ranks)
        shape = (*logits.shape[:2], ranks)
        return log_probs.reshape(shape), self.target_ids.numpy()[ids].reshape(shape)


def _each(layers: Sequence[Callable[[Tensor], Tensor]], slots: Tensor) -> Tensor:
    """Each slot's own layer: [row, slot, in] -> [row, slot, out]."""
    return torch.stack([layer(slots[:, slot].contiguous()) for slot, layer in enumerate(layers)], dim=1)
