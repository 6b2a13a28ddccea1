"""Training EAGLE heads: EAGLE-3's training-time test (arXiv:2503.01840, section 3.2), EAGLE-1's two losses
(arXiv:2401.15077, section 3.3), and P-EAGLE's masks (arXiv:2602.01469)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import ConfigError
from headstart_train.choices import LossName
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.files.heads import save_head
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.objectives.text_lessons import BatchTextTokens, TextLessons
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.states import Batch

_FEATURE_WEIGHT, _TOKEN_WEIGHT = 1.0, 0.1
"""EAGLE-1's weights of the two losses."""
_KEPT = 0.8
"""Share of a depth's places at which P-EAGLE learns the next depth, too: its conditional drop, for about half the work
of eight depths."""


class EagleObjective:
    """An EAGLE head that is unrolled on its own states, as drafting will do; or one that guesses several tokens in one
    pass, whose steps read masks instead.

    Args:
        head: on the device where batches come.
        tables: the target's, float32 or bfloat16, likewise.
        teacher_ids: int64 target ids whose probabilities are learnt: EAGLE-3's draft vocabulary; EAGLE-1 keeps the
            whole head but may learn from its frequent tokens alone.
        steps: unrolled steps; of a head that guesses several tokens in one pass: the most that its masks stand behind.
        decay: weight of a step relative to the one before.
        dropout: share of what the head reads that is zeroed while it learns.
        depth: steps that are judged on held-out text.

    One that guesses several tokens in one pass is learnt as deep as these. Its masks stand behind the true rows, or
    behind some of its own steps as well: how many is drawn for every batch, from 1 to ``steps`` in all.
    """

    def __init__(
        self,
        head: EagleHead,
        tables: TargetTables,
        teacher_ids: Tensor,
        *,
        loss: LossName = "ce",
        steps: int = 4,
        decay: float = 0.8,
        dropout: float = 0.0,
        depth: int = 5,
    ) -> None:
        deepest = max(head.config.slots, steps, depth)
        if narrow := [window for window in head.config.windows if 0 < window <= deepest]:
            raise ConfigError(f"window is {narrow[0]}; a draft of {deepest} tokens needs more.")
        self.head = head
        self._teacher = Teacher(tables, teacher_ids)
        self._lessons = TextLessons(head, tables, teacher_ids) if head.config.reduced else None
        self._embedding = tables.embedding if head.embedding is None else head.embedding
        slots = head.config.slots
        self._loss, self._decay, self.depth = loss, decay, slots or depth
        self._steps, self._unmasked = (slots, min(steps, slots)) if slots else (steps, steps)
        self._dropout = dropout
        self._rotary = RotaryTable(head.config.rope, torch.float32, tables.head.device)

    def loss(self, batch: Batch) -> Tensor:
        text_tokens = None if self._lessons is None else self._lessons.of(batch)
        losses = StepLosses(self.head, self._teacher, batch, self._loss, self._decay, text_tokens)
        unrolled = self._unrolled(batch, self._dropout)
        total = torch.zeros((), device=batch.tokens.device)
        token_weight = 1.0 if self.head.config.side_by_side else _TOKEN_WEIGHT
        masked_from = self._steps
        if self.head.config.slots:
            masked_from = 1 if self._unmasked == 1 else int(torch.randint(1, self._unmasked + 1, ()))
        kept = 1.0
        for step in range(self._steps):
            if step and self.head.config.slots:
                kept *= unrolled.drop(_KEPT)
            output = unrolled.step(masked=step >= masked_from)
            places = losses.places(step) & unrolled.places
            learnt = output[places[unrolled.places]]
            loss = losses.loss(step, places, learnt, partial(self._logits, text_tokens))
            total = total + token_weight / kept * loss
            if not self.head.config.side_by_side:
                wanted = batch.guessed(step)
                imitated = _ahead(batch.final, 1 + step)[wanted]
                said = output[wanted[unrolled.places]].float()
                distance = F.smooth_l1_loss(said, imitated, reduction="sum") / output.shape[-1]
                total = total + _FEATURE_WEIGHT * self._decay**step * distance / max(len(output), 1)
        return total

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        text_tokens = None if self._lessons is None else self._lessons.of(batch)
        chains = Chains(self._teacher, batch, text_tokens=text_tokens)
        unrolled = self._unrolled(batch)
        for step in range(self.depth):
            masked = step > 0 and self.head.config.slots > 0
            chains.judge(step, self._logits(text_tokens, unrolled.step(masked=masked)))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        save_head(self.head, directory, record, torch.bfloat16)

    def _unrolled(self, batch: Batch, dropout: float = 0.0) -> Unrolled:
        mask, windows = self._mask(), self.head.config.windows
        return Unrolled(self.head, self._embedding, self._rotary, batch, dropout, mask, windows)

    def _mask(self) -> tuple[int, Tensor] | None:
        """What one that guesses several tokens in one pass reads at all steps but the first."""
        config = self.head.config
        return (config.mask_token_id, self.head.mask_hidden[0]) if config.slots else None

    def _logits(self, text_tokens: BatchTextTokens | None, output: Tensor) -> Tensor:
        logits = self.head.logits(output, self._teacher.draft_head.to(output.dtype))
        return logits if text_tokens is None else torch.cat((logits, text_tokens.logits(output)), dim=-1)


def _ahead(states: Tensor, distance: int) -> Tensor:
    """states[:, i + distance] at place i, zeros beyond the end."""
    return F.pad(states, (0, 0, 0, distance))[:, distance:]
