"""Heads that say several future tokens at once from the target's last state.

Medusa (Cai et al. 2024, arXiv:2401.10774): a residual block for each future token. Blockwise (Stern et al. 2018,
arXiv:1811.03115): one wide layer for all of them. Both end in the target's own output head, or Medusa in copies of it.

Slot i (from 0) of the state at position t says token t + 2 + i; the target's own head says token t + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.models.heads.head_pass import Kit
from headstart.models.heads.tables import TargetTables
from headstart.models.weights import LinearWeights

ParallelKind = Literal["medusa", "blockwise"]


@dataclass(frozen=True)
class ParallelConfig:
    """Several heads on one state. Sizes are in elements."""

    kind: ParallelKind
    hidden_size: int
    vocab_size: int
    """Of the target."""
    draft_vocab_size: int
    """Tokens the heads can say."""
    slots: int = 4
    """Future tokens."""
    num_layers: int = 1
    """Residual blocks of a slot (Medusa)."""
    inner_size: int = 0
    """Width of the shared layer for each slot (blockwise); 0: as wide as the state."""
    own_heads: bool = False
    """Each slot ends in a head of its own (Medusa's files), not in the target's."""

    @property
    def reduced(self) -> bool:
        return self.draft_vocab_size != self.vocab_size


class MedusaBlock(nn.Module):
    """x + SiLU(Wx + b); W and b begin at zero, so that every head first says what the target's does."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = F.silu(self.linear(x))
        return x + changed


class ParallelHeads(nn.Module):
    """The trained part of a Medusa or blockwise drafter; ``d2t`` as in ``heads.eagle``."""

    d2t: Tensor

    def __init__(self, config: ParallelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, slots = config.hidden_size, config.slots
        if config.kind == "medusa":
            self.blocks = nn.ModuleList(
                nn.Sequential(*(MedusaBlock(hidden) for _ in range(config.num_layers))) for _ in range(slots)
            )
        else:
            inner = slots * (config.inner_size or hidden)
            self.wide = nn.Linear(hidden, inner)
            self.narrow = nn.Linear(inner, slots * hidden)
            nn.init.zeros_(self.narrow.weight)
            nn.init.zeros_(self.narrow.bias)
        if config.own_heads:
            self.heads = nn.ModuleList(nn.Linear(hidden, config.draft_vocab_size, bias=False) for _ in range(slots))
        if config.reduced:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    @property
    def target_ids(self) -> Tensor:
        """int64 [draft vocab] target id of each draft id."""
        ids = torch.arange(self.config.draft_vocab_size, device=next(self.parameters()).device)
        return ids + self.d2t if self.config.reduced else ids

    def blocks_by_depth(self) -> list[list[nn.Linear]]:
        """The blocks' layers, [block][slot]."""
        return [
            [cast(nn.Linear, self.get_submodule(f"blocks.{slot}.{depth}.linear")) for slot in range(self.config.slots)]
            for depth in range(self.config.num_layers)
        ]

    def own_outputs(self) -> list[Tensor]:
        """Each slot's own output head [draft vocab, hidden], where it has one."""
        return [self.get_parameter(f"heads.{slot}.weight") for slot in range(self.config.slots)]

    def forward(self, hidden: Tensor) -> Tensor:
        """The target's state after its final norm [..., hidden] -> [..., slot, hidden], to be read by a head."""
        if self.config.kind == "medusa":
            return torch.stack([block(hidden) for block in self.blocks], dim=-2)
        changed: Tensor = self.narrow(F.relu(self.wide(hidden))).unflatten(-1, (self.config.slots, -1))
        return hidden.unsqueeze(-2) + changed

    def logits(self, states: Tensor, shared_head: Tensor) -> Tensor:
        """[..., slot, hidden] -> [..., slot, draft vocab]; ``shared_head`` is the target's, cut to the draft ids."""
        if not self.config.own_heads:
            return F.linear(states, shared_head)
        outputs = zip(states.unbind(-2), self.own_outputs(), strict=True)
        return torch.stack([F.linear(state, output) for state, output in outputs], dim=-2)


class ParallelPass:
    """Runs the heads with packed matrices.

    Args:
        head: weights, copied.
        tables: the target's; used where the heads have no output of their own.
        kit: what it is computed with.
    """

    @torch.inference_mode()
    def __init__(self, head: ParallelHeads, tables: TargetTables, kit: Kit) -> None:
        self.config = config = head.config
        self._kit = kit
        self.target_ids = head.target_ids.cpu()
        linear = kit.linear
        if config.kind == "medusa":
            # All slots read the same state first: their first blocks are one matrix.
            first, *deeper = head.blocks_by_depth()
            weight, bias = (torch.cat([getattr(block, name) for block in first]) for name in ("weight", "bias"))
            self._first = linear(LinearWeights(weight, bias))
            self._deeper = [[linear(LinearWeights(block.weight, block.bias)) for block in depth] for depth in deeper]
        else:
            self._wide = linear(LinearWeights(head.wide.weight, head.wide.bias))
            self._narrow = linear(LinearWeights(head.narrow.weight, head.narrow.bias))
        if config.own_heads:
            self._heads = [linear(LinearWeights(weight)) for weight in head.own_outputs()]
        else:
            self._heads = [linear(LinearWeights(tables.head[head.target_ids.to(tables.head.device)]))]

    @property
    def nbytes(self) -> int:
        """Of its matrices."""
        if self.config.kind == "medusa":
            layers = [self._first, *(block for depth in self._deeper for block in depth)]
        else:
            layers = [self._wide, self._narrow]
        return sum(part.nbytes for part in (*layers, *self._heads))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[row, hidden] states of the target after its final norm -> float32 [row, slot, draft vocab]."""
        config = self.config
        x = hidden.to(self._kit.dtype)
        if config.kind == "medusa":
            slots = x.unsqueeze(1) + F.silu(self._first(x)).view(len(x), config.slots, -1)
            for depth in self._deeper:
                changed = [one(slots[:, slot].contiguous()) for slot, one in enumerate(depth)]
                slots = slots + F.silu(torch.stack(changed, dim=1))
        else:
            slots = x.unsqueeze(1) + self._narrow(F.relu(self._wide(x))).view(len(x), config.slots, -1)
        if config.own_heads:
            said = [one(slots[:, slot].contiguous()) for slot, one in enumerate(self._heads)]
            return torch.stack(said, dim=1).float()
        return self._heads[0](slots.flatten(0, 1)).float().view(len(x), config.slots, -1)

    def best(self, logits: Tensor, ranks: int) -> NDArray[np.int64]:
        """Target ids of the likeliest tokens of [row, slot, draft vocab]: [row, slot, rank]."""
        _, ids = self._kit.best(logits.flatten(0, 1), ranks)
        return self.target_ids.numpy()[ids].reshape(*logits.shape[:2], ranks)
