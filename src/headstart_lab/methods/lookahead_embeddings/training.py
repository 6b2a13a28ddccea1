"""Training PaSS's look-ahead embeddings (Monea et al. 2023, arXiv:2311.13581) through a target that stays as it is.

Unlike the paper, which learns the token that the text happens to say, each slot learns the target's whole law of it.
The text's keys and values do not depend on what is learnt, so gradients flow through the look-ahead rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_train.choices import LossName
from headstart_train.decoder.trainable import TrainableDecoder, attend_masked
from headstart_train.files.heads import save_head
from headstart_train.making import Start
from headstart_train.objectives.masks import Behind, Rows, sees_text
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.states import Batch

_SPACING = 2
"""Text rows from one set of look-ahead rows to the next, as a multiple of the number of slots."""


def make(start: Start) -> LookaheadObjective:
    """Look-ahead embeddings at their first step, beside the frozen target."""
    config, tables, ids = start.target.config, start.tables, start.ids
    lookahead = LookaheadEmbeddings(start.slots, config.hidden_size).to(ids.device)
    lookahead.begin_like(tables.embedding, config.embedding.scale)
    weights = replace(start.weights, embedding=tables.embedding)
    frozen = TrainableDecoder(config, weights, frozen=True, device=ids.device)
    return LookaheadObjective(lookahead, frozen, tables, ids, loss=start.settings.loss, decay=start.decay)


class LookaheadObjective:
    """Look-ahead embeddings after some places of the text; slot k is depth k.

    Args:
        head: what is learnt.
        decoder: the target, frozen, on the device where batches come.
        tables: the target's, likewise.
        teacher_ids: int64 target ids whose probabilities are learnt.
        decay: weight of a slot relative to the one before.
    """

    def __init__(
        self,
        head: LookaheadEmbeddings,
        decoder: TrainableDecoder,
        tables: TargetTables,
        teacher_ids: Tensor,
        *,
        loss: LossName = "ce",
        decay: float = 0.8,
    ) -> None:
        self.head = head
        self.depth = head.slots
        self._decoder = decoder
        self._teacher = Teacher(tables, teacher_ids, decoder.config.head.softcap)
        self._loss, self._decay = loss, decay

    def loss(self, batch: Batch) -> Tensor:
        """Of places that are drawn anew for every step."""
        spacing = _SPACING * self.head.slots
        among = (batch.positions + int(torch.randint(spacing, ()))) % spacing == 0
        losses = StepLosses(self.head, self._teacher, batch, self._loss, self._decay)
        behind = Behind.places(batch, batch.guessed(0) & among)
        states = self._states(batch, behind)
        total = torch.zeros((), device=batch.tokens.device)
        for slot in range(self.head.slots):
            places = losses.places(slot) & among
            said = behind.at(states[:, :, slot], places)
            total = total + spacing * losses.loss(slot, places, said, self._teacher.logits)
        return total

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        chains = Chains(self._teacher, batch, batch.positions % self.head.slots == 0)
        behind = Behind.places(batch, chains.places)
        states = self._states(batch, behind)
        for slot in range(self.head.slots):
            chains.judge(slot, self._teacher.logits(behind.at(states[:, :, slot], chains.places)))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        save_head(self.head, directory, record)

    def _states(self, batch: Batch, behind: Behind) -> Tensor:
        """[pack, place, slot, hidden] final states of the look-ahead rows."""
        config, slots = self._decoder.config, self.head.slots
        windows = {layer.window for layer in config.layers}
        text: list[tuple[Tensor, Tensor]] = []
        sees = {window: sees_text(Rows.of_text(batch), batch, window) for window in windows}

        def attend_text(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            text.append((k, v))
            return attend_masked(q, k, v, sees[config.layers[index].window], config)

        with torch.no_grad():
            self._decoder(self._decoder.embed(batch.tokens), batch.positions, attend_text)
        rows = behind.rows(batch, slots)
        sees = {window: _with_own(sees_text(rows, batch, window), slots, window) for window in windows}

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = text[index]
            together = (torch.cat((keys.to(k.dtype), k), 1), torch.cat((values.to(v.dtype), v), 1))
            return attend_masked(q, *together, sees[config.layers[index].window], config)

        inputs = self.head.embeddings.repeat(behind.index.shape[1], 1).expand(len(batch.tokens), -1, -1)
        # After the end of the longest texts nothing is learnt, but learned positions must exist.
        states: Tensor = self._decoder(inputs, rows.positions.clamp(max=config.max_positions - 1), attend)
        return states.view(len(states), -1, slots, config.hidden_size)


def _with_own(sees: Tensor, slots: int, window: int | None) -> Tensor:
    """Look-ahead rows after the text: each sees itself and those before it after the same place."""
    rows = torch.arange(sees.shape[1], device=sees.device)
    distance = rows[:, None] - rows
    own = (rows[:, None] // slots == rows // slots) & (distance >= 0)
    if window is not None:
        own &= distance < window
    return torch.cat((sees, own.expand(len(sees), -1, -1)), dim=2)
