"""Training block heads (DFlash, arXiv:2602.06036, section 4.2): blocks that begin at places of the text drawn anew for
every step, all of them in one pass, each blind to what the text says after its beginning.

The paper learns the tokens of the text; here each row learns the target's whole law there. Later rows count less, since
a guess is worth nothing after a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart_train.choices import LossName
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.files.heads import save_head
from headstart_train.objectives.losses import block_weights
from headstart_train.objectives.masks import Behind, sees_text
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.objectives.text_lessons import BatchTextTokens, TextLessons
from headstart_train.states import Batch, shift


class BlockObjective:
    """Blocks after some places of the text; guess k of a block is depth k.

    Args:
        head: on the device where batches come.
        tables: the target's, float32 or bfloat16, likewise.
        teacher_ids: int64 target ids whose probabilities are learnt: the draft vocabulary.
        decay: weight of a guess relative to the one before; None: ``block_decay``.
        spacing: tokens of the text from one block to the next; None: as long as a block is, so that a step computes
            about as many rows as there are tokens. Where the target's pass takes longer than the head's, closer ones
            learn more in the same time.
    """

    def __init__(
        self,
        head: BlockHead,
        tables: TargetTables,
        teacher_ids: Tensor,
        *,
        loss: LossName = "ce",
        decay: float | None = None,
        spacing: int | None = None,
    ) -> None:
        self.head = head
        self.depth = head.config.slots
        self._spacing = spacing or head.config.block_size
        self._teacher = Teacher(tables, teacher_ids)
        self._lessons = TextLessons(head, tables, teacher_ids) if head.config.reduced else None
        self._embedding = tables.embedding if head.embedding is None else head.embedding
        self._loss = loss
        self._decay = block_decay(head.config.block_size) if decay is None else decay
        self._rotary = RotaryTable(head.config.rope, torch.float32, tables.head.device)

    def loss(self, batch: Batch) -> Tensor:
        spacing = self._spacing
        among = (batch.positions + int(torch.randint(spacing, ()))) % spacing == 0
        text_tokens = None if self._lessons is None else self._lessons.of(batch)
        losses = StepLosses(self.head, self._teacher, batch, self._loss, self._decay, text_tokens)
        behind = Behind.places(batch, batch.guessed(0) & among)
        states = self._states(batch, behind)
        places = [losses.places(depth) & among for depth in range(self.depth)]
        said = [
            self._with_before(batch, depth, of_depth, behind.at(states[:, :, depth], of_depth))
            for depth, of_depth in enumerate(places)
        ]
        say = partial(self._logits, text_tokens)
        sure = self._confidence if self.head.config.confidence else None
        weights = self._weights(losses, batch, places, said, say) if self._loss == "dpace" else None
        total = torch.zeros((), device=batch.tokens.device)
        for depth, (of_depth, its_states) in enumerate(zip(places, said, strict=True)):
            its_weights = None if weights is None else weights[..., depth][of_depth]
            total = total + spacing * losses.loss(depth, of_depth, its_states, say, sure, its_weights)
        return total

    def _weights(
        self,
        losses: StepLosses,
        batch: Batch,
        places: Sequence[Tensor],
        said: Sequence[Tensor],
        say: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """[pack, position, depth] of the guesses of the block at each place, by how likely all of them are accepted;
        what the head cannot say never is."""
        accepted = torch.zeros(*batch.tokens.shape, self.depth, device=batch.tokens.device)
        for depth, (of_depth, states) in enumerate(zip(places, said, strict=True)):
            accepted[..., depth][of_depth] = losses.accepted(depth, of_depth, states.detach(), say)
        exists = torch.stack([batch.guessed(depth) for depth in range(self.depth)], dim=-1)
        return block_weights(accepted, exists)

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        text_tokens = None if self._lessons is None else self._lessons.of(batch)
        chains = Chains(self._teacher, batch, batch.positions % self.head.config.block_size == 0, text_tokens)
        behind = Behind.places(batch, chains.places)
        states = self._states(batch, behind)
        for depth in range(self.depth):
            said = self._with_before(batch, depth, chains.places, behind.at(states[:, :, depth], chains.places))
            chains.judge(depth, self._logits(text_tokens, said))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        save_head(self.head, directory, record, torch.bfloat16)

    def _with_before(self, batch: Batch, depth: int, places: Tensor, states: Tensor) -> Tensor:
        """States [place, hidden] of guesses; beside them, what is known of the token that the text has before each."""
        if not self.head.config.markov_rank:
            return states
        before = shift(batch.tokens, 1 + depth, 0)[places]
        return torch.cat((states, self.head.said_before(before)), dim=-1)

    def _confidence(self, states: Tensor) -> Tensor:
        """Of guesses with what is known of the token before them, as a logit; the states are held fixed, lest they
        become predictable instead of right."""
        size = self.head.config.hidden_size
        return self.head.confidence(states[..., :size].detach(), states[..., size:].detach())

    def _logits(self, text_tokens: BatchTextTokens | None, states: Tensor) -> Tensor:
        config = self.head.config
        rows = self.head.lm_head.weight if config.own_output else self._teacher.draft_head
        states, before = states[..., : config.hidden_size], states[..., config.hidden_size :]
        logits = F.linear(states.to(rows.dtype), rows)
        if config.markov_rank:
            logits = logits + self.head.markov_head.markov_w2(before)
        return logits if text_tokens is None else torch.cat((logits, text_tokens.logits(states)), dim=-1)

    def _states(self, batch: Batch, behind: Behind) -> Tensor:
        """[pack, place, guess, hidden] what the blocks say: the root of each stands one position after its place."""
        config = self.head.config
        size, mask = config.block_size, torch.tensor(config.mask_token_id, device=batch.tokens.device)
        roots = shift(batch.tokens, 1, 0).gather(1, behind.index)
        tokens = torch.cat((roots[:, :, None], mask.expand(*roots.shape, size - 1)), dim=2).flatten(1)
        rows = behind.rows(batch, size)
        sees = torch.cat((sees_text(rows, batch, None), _own(roots.shape, size, config.causal, mask.device)), dim=2)
        reach = batch.tokens.shape[1] + size + 1
        context = self.head.context(batch.features)
        rotate_text = partial(self._rotary.rotate, positions=batch.positions, reach=reach)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.head.context_heads(index, context, rotate_text)
            together = torch.cat((keys.to(q.dtype), k), 1), torch.cat((values.to(q.dtype), v.to(q.dtype)), 1)
            return _mix(q, *together, sees)

        embeddings = F.embedding(tokens, self._embedding).float()
        rotate = partial(self._rotary.rotate, positions=rows.positions, reach=reach)
        states: Tensor = self.head(embeddings, rotate, attend)
        return states.view(len(states), -1, size, config.hidden_size)[:, :, config.speaking]


def block_decay(block_size: int) -> float:
    """exp(-1 / gamma) with gamma half a block, which are the paper's 4 and 5 for blocks of 8 and 10 (its 7 for 16)."""
    return math.exp(-2 / block_size)


def _own(shape: torch.Size, size: int, causal: bool, device: torch.device) -> Tensor:
    """bool [pack, row, row]: the rows of a block see each other, or those before them only."""
    packs, blocks = shape
    rows = torch.arange(blocks * size, device=device)
    own = rows[:, None] // size == rows // size
    if causal:
        own &= rows[:, None] >= rows
    return own.expand(packs, -1, -1)


def _mix(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    """q [pack, row, head, head_dim], k and v [pack, key, kv_head, head_dim] -> [pack, row, head * head_dim]."""
    shared = q.shape[2] // k.shape[2]
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    k, v = (heads.repeat_interleave(shared, dim=1) for heads in (k, v))
    return F.scaled_dot_product_attention(q, k, v, sees[:, None]).transpose(1, 2).flatten(2)
