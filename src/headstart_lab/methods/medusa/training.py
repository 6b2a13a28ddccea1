"""Training Medusa (arXiv:2401.10774, section 2.2.1: the target stays as it is) and blockwise heads.

Unlike the papers, which learn the token that the text happens to say, each slot learns the target's whole law of it;
all of blockwise's slots are learnt at once rather than one at random. The state that the heads read tells what greedy
decoding says next, not what was drawn: a place is learnt only where the text goes on greedily up to the guess, but for
the token after the state where the heads read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart_lab.methods.medusa.head import (
    BLOCKWISE,
    MEDUSA,
    ParallelConfig,
    ParallelHeads,
    ParallelKind,
    token_rows,
)
from headstart_train.choices import LossName
from headstart_train.files.heads import save_head
from headstart_train.first_steps.tokens import name_tokens
from headstart_train.making import Start
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.states import Batch, shift

_RESIDUAL_BLOCKS = 4
_UNSEEN = 0.25
"""Share of the places where heads that read tokens are not shown them, so that other engines can do without."""


def make_medusa(start: Start) -> ParallelObjective:
    """Medusa's heads at their first step."""
    return _make(start, MEDUSA)


def make_blockwise(start: Start) -> ParallelObjective:
    """Blockwise heads at their first step."""
    return _make(start, BLOCKWISE)


def _make(start: Start, kind: ParallelKind) -> ParallelObjective:
    """New heads, of the shape of the known ones if they are to begin from these."""
    settings, known = start.settings, start.known
    begun = known.config if isinstance(known, ParallelHeads) else None
    heads = ParallelHeads(
        ParallelConfig(
            kind=kind,
            hidden_size=start.target.config.hidden_size,
            vocab_size=start.target.config.vocab_size,
            draft_vocab_size=len(start.ids),
            slots=start.slots,
            num_layers=settings.residual_blocks or (_RESIDUAL_BLOCKS if begun is None else begun.num_layers),
            output_maps=kind == MEDUSA if begun is None else begun.output_maps,
            reads_token=kind == MEDUSA if settings.reads_token is None else settings.reads_token,
        )
    )
    name_tokens(heads, start.ids)
    return ParallelObjective(heads.to(start.ids.device), start.tables, start.ids, loss=settings.loss, decay=start.decay)


class ParallelObjective:
    """Heads on the target's last state; slot k is depth k. Arguments as ``EagleObjective``."""

    def __init__(
        self,
        head: ParallelHeads,
        tables: TargetTables,
        teacher_ids: Tensor,
        *,
        loss: LossName = "ce",
        decay: float = 0.8,
    ) -> None:
        self.head = head
        self.depth = head.config.slots
        self._teacher = Teacher(tables, teacher_ids)
        self._embedding = tables.embedding
        self._loss, self._decay = loss, decay

    def loss(self, batch: Batch) -> Tensor:
        losses = StepLosses(self.head, self._teacher, batch, self._loss, self._decay)
        favoured = foreseeable = batch.favourites == shift(batch.tokens, 1, -2)
        tokens = self._next_tokens(batch)
        if tokens is not None:
            seen = torch.rand(favoured.shape).to(favoured.device) >= _UNSEEN
            tokens, foreseeable = tokens * seen.unsqueeze(-1), favoured | seen
        states = self.head(batch.final, tokens)
        total = torch.zeros((), device=batch.tokens.device)
        for slot in range(self.head.config.slots):
            if slot:
                foreseeable = foreseeable & shift(favoured, slot, False)
            places = losses.places(slot) & foreseeable
            total = total + losses.loss(slot, places, states[:, :, slot][places], partial(self._logits, slot=slot))
        return total

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        chains = Chains(self._teacher, batch)
        tokens = self._next_tokens(batch)
        states = self.head(batch.final[chains.places], None if tokens is None else tokens[chains.places])
        for slot in range(self.head.config.slots):
            chains.judge(slot, self._logits(states[:, slot], slot))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        save_head(self.head, directory, record, torch.bfloat16)

    def _next_tokens(self, batch: Batch) -> Tensor | None:
        """[pack, position, hidden]; None where the heads do not read them."""
        return token_rows(self._embedding, shift(batch.tokens, 1, 0)) if self.head.config.reads_token else None

    def _logits(self, states: Tensor, slot: int) -> Tensor:
        """[place, hidden] of one slot -> [place, draft vocab]."""
        own = self.head.own_outputs()[slot] if self.head.config.own_heads else self._teacher.draft_head
        return torch.nn.functional.linear(states, own.to(states.dtype))
