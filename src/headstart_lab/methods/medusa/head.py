"""Heads that say several future tokens at once from the target's last state.

Medusa (Cai et al. 2024, arXiv:2401.10774): residual blocks for each future token. Blockwise (Stern et al. 2018,
arXiv:1811.03115): one wide layer for all of them. Both end in the target's own output head, or Medusa in heads of its
own: SiLU is hardly ever negative, so blocks alone cannot take back what the state says of the token before
(docs/experiments/training.md, 0042). Medusa's slots may also read that token, which a round knows before it drafts,
as the first of Hydra's heads does (Ankner et al. 2024, arXiv:2402.05109, section 3).

Slot i (from 0) of the state at position t says token t + 2 + i; the target's own head says token t + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.drafting.heads.formats import SpeakingHead

ParallelKind = Literal["medusa", "blockwise"]
MEDUSA: ParallelKind = "medusa"
BLOCKWISE: ParallelKind = "blockwise"
_FIRST_SURENESS = 0.1
"""Scale of what an output map lets through at first: a slot that knows nothing yet must not be sure of it."""


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
    output_maps: bool = False
    """Each slot ends in the target's head after a matrix of its own: an own head that a state's size suffices for
    (Medusa)."""
    reads_token: bool = False
    """Each slot also reads the token after the state, by the target's embedding (Medusa)."""

    @property
    def own_blocks(self) -> bool:
        """Each slot has residual blocks of its own (Medusa); else all share one wide layer (blockwise)."""
        return self.kind == MEDUSA

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


def token_rows(embedding: Tensor, tokens: Tensor) -> Tensor:
    """What slots read of tokens: [...] ids -> [..., hidden], of one size whatever the embedding's."""
    return F.rms_norm(F.embedding(tokens, embedding).float(), embedding.shape[-1:])


class ParallelHeads(SpeakingHead):
    """The trained part of a Medusa or blockwise drafter; ``d2t`` as in ``heads.eagle``."""

    config: ParallelConfig

    def __init__(self, config: ParallelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, slots = config.hidden_size, config.slots
        if config.own_blocks:
            self.blocks = nn.ModuleList(
                nn.Sequential(*(MedusaBlock(hidden) for _ in range(config.num_layers))) for _ in range(slots)
            )
        else:
            inner = slots * (config.inner_size or hidden)
            self.wide = nn.Linear(hidden, inner)
            self.narrow = nn.Linear(inner, slots * hidden)
            nn.init.zeros_(self.narrow.weight)
            nn.init.zeros_(self.narrow.bias)
        if config.reads_token:
            self.token_maps = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(slots))
            for each in self.maps_of_tokens():
                nn.init.zeros_(each.weight)
        if config.output_maps:
            self.maps = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(slots))
            for each in self.output_maps():
                nn.init.eye_(each.weight)
                each.weight.data.mul_(_FIRST_SURENESS)
        if config.own_heads:
            self.heads = nn.ModuleList(nn.Linear(hidden, config.draft_vocab_size, bias=False) for _ in range(slots))
        if config.reduced:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    @property
    def kind(self) -> str:
        return self.config.kind

    def may_begin_from(self, known: SpeakingHead) -> bool:
        """Whatever the vocabulary, and whether the last token is read: a head that begins to read it says at first what
        it said without."""
        return isinstance(known, ParallelHeads) and self._trunk == known._trunk

    @property
    def _trunk(self) -> ParallelConfig:
        return replace(self.config, draft_vocab_size=self.config.vocab_size, reads_token=False)

    def blocks_by_depth(self) -> list[list[nn.Linear]]:
        """The blocks' layers, [block][slot]."""
        return [
            [cast(nn.Linear, self.get_submodule(f"blocks.{slot}.{depth}.linear")) for slot in range(self.config.slots)]
            for depth in range(self.config.num_layers)
        ]

    def own_outputs(self) -> list[Tensor]:
        """Each slot's own output head [draft vocab, hidden], where it has one."""
        return [self.get_parameter(f"heads.{slot}.weight") for slot in range(self.config.slots)]

    def output_maps(self) -> list[nn.Linear]:
        """Each slot's matrix before the target's output head, where it has one."""
        return [cast(nn.Linear, self.maps[slot]) for slot in range(self.config.slots)]

    def maps_of_tokens(self) -> list[nn.Linear]:
        """Each slot's matrix for the token after the state, where it reads that."""
        return [cast(nn.Linear, self.token_maps[slot]) for slot in range(self.config.slots)]

    def forward(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """What a head is to read for each slot.

        Args:
            hidden: [..., hidden] the target's state after its final norm.
            tokens: [..., hidden] ``token_rows`` of the tokens after the states, zeros for those that are not to be
                known; None: none of them is. Of use where the heads read them.

        Returns:
            [..., slot, hidden].
        """
        if self.config.own_blocks:
            entries = [hidden] * self.config.slots
            if self.config.reads_token and tokens is not None:
                entries = [hidden + of_tokens(tokens) for of_tokens in self.maps_of_tokens()]
            slots = [block(entry) for block, entry in zip(self.blocks, entries, strict=True)]
            if self.config.output_maps:
                slots = [last(slot) for last, slot in zip(self.output_maps(), slots, strict=True)]
            return torch.stack(slots, dim=-2)
        changed: Tensor = self.narrow(F.relu(self.wide(hidden))).unflatten(-1, (self.config.slots, -1))
        return hidden.unsqueeze(-2) + changed

    def logits(self, states: Tensor, shared_head: Tensor) -> Tensor:
        """[..., slot, hidden] -> [..., slot, draft vocab]; ``shared_head`` is the target's, cut to the draft ids."""
        if not self.config.own_heads:
            return F.linear(states, shared_head)
        outputs = zip(states.unbind(-2), self.own_outputs(), strict=True)
        return torch.stack([F.linear(state, output) for state, output in outputs], dim=-2)
