"""Training EAGLE heads: EAGLE-3's training-time test (arXiv:2503.01840, section 3.2), and EAGLE-1's two losses
(arXiv:2401.15077, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.heads.eagle import EagleHead, RotaryTable
from headstart.models.heads.saving import save_head
from headstart.models.heads.tables import TargetTables
from headstart.training.losses import LossName
from headstart.training.objective import Chains, HeldOut, StepLosses, Teacher
from headstart.training.states import Batch, shift

_FEATURE_WEIGHT, _TOKEN_WEIGHT = 1.0, 0.1
"""EAGLE-1's weights of the two losses."""


class EagleObjective:
    """An EAGLE head that is unrolled on its own states, as drafting will do.

    Args:
        head: on the device where batches come.
        tables: the target's, float32 or bfloat16, likewise.
        teacher_ids: int64 target ids whose probabilities are learnt: EAGLE-3's draft vocabulary; EAGLE-1 keeps the
            whole head but may learn from its frequent tokens alone.
        steps: unrolled steps.
        decay: weight of a step relative to the one before.
        dropout: share of what the head reads that is zeroed while it learns.
        depth: steps that are judged on held-out text.
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
        self.head = head
        self._teacher = Teacher(tables, teacher_ids)
        self._embedding = tables.embedding if head.embedding is None else head.embedding
        self._loss, self._steps, self._decay, self.depth = loss, steps, decay, depth
        self._dropout = dropout
        self._rotary = RotaryTable(head.config.rope, torch.float32, tables.head.device)

    def loss(self, batch: Batch) -> Tensor:
        losses = StepLosses(self._teacher, batch, self._loss, self._decay)
        unrolled = _Unrolled(self.head, self._embedding, self._rotary, batch, self._dropout)
        total = torch.zeros((), device=batch.tokens.device)
        token_weight = 1.0 if self.head.config.variant == "eagle3" else _TOKEN_WEIGHT
        for step in range(self._steps):
            output = unrolled.step()
            places = losses.places(step)
            total = total + token_weight * losses.loss(step, places, self._logits(output[places[unrolled.places]]))
            if self.head.config.variant == "eagle":
                wanted = batch.guessed(step)
                imitated = _ahead(batch.final, 1 + step)[wanted]
                said = output[wanted[unrolled.places]].float()
                distance = F.smooth_l1_loss(said, imitated, reduction="sum") / output.shape[-1]
                total = total + _FEATURE_WEIGHT * self._decay**step * distance / max(len(output), 1)
        return total

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        chains = Chains(self._teacher, batch)
        unrolled = _Unrolled(self.head, self._embedding, self._rotary, batch)
        for step in range(self.depth):
            chains.judge(step, self._logits(unrolled.step()))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        save_head(self.head, directory, record, torch.bfloat16)

    def _logits(self, output: Tensor) -> Tensor:
        return self.head.logits(output, self._teacher.draft_head.to(output.dtype))


class _Unrolled:
    """Steps of the head over whole packs.

    At step j, place i stands for the j-th row of a draft that begins after the true rows up to i: it reads the token
    1 + j places on, at position i + j, beside the state that step j - 1 left at i; it sees the true rows up to i of
    its own document, and the earlier steps at i. The first step computes all rows, as all are seen; the others only
    ``places``, where a draft would begin: what stands in for them in the shorter packs is computed and left out.

    Attributes:
        places: bool [pack, position] where a draft may begin.
    """

    def __init__(
        self, head: EagleHead, embedding: Tensor, rotary: RotaryTable, batch: Batch, dropout: float = 0.0
    ) -> None:
        self._head, self._embedding, self._rotary, self._batch = head, embedding, rotary, batch
        self._dropout = dropout
        self.places = batch.guessed(0)
        counts = self.places.sum(1, keepdim=True)
        most = int(counts.max())
        # Places first, in their order.
        self._chosen = self.places.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        self._valid = torch.arange(most, device=counts.device) < counts
        self._states = head.fuse(F.dropout(batch.features, dropout))
        length = batch.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=batch.tokens.device).tril()
        self._sees = (causal & (batch.documents[:, :, None] == batch.documents[:, None, :]))[:, None]
        self._true: tuple[Tensor, Tensor] | None = None
        self._drafted: list[tuple[Tensor, Tensor]] = []
        self._step = 0

    def step(self) -> Tensor:
        """The next step's output at ``places``: [place, hidden]."""
        tokens, positions = shift(self._batch.tokens, 1 + self._step, 0), self._batch.positions + self._step
        first = self._step == 0
        if not first:
            tokens, positions = tokens.gather(1, self._chosen), positions.gather(1, self._chosen)
        embeddings = F.dropout(F.embedding(tokens, self._embedding).float(), self._dropout)
        reach = self._batch.tokens.shape[1] + self._step + 1
        rotate = partial(self._rotary.rotate, positions=positions, reach=reach)
        output: Tensor = self._head(embeddings, self._states, rotate, self._attend)
        if first:
            output = self._choose(output)
            self._sees = self._sees.gather(2, self._chosen[:, None, :, None].expand(-1, -1, -1, self._sees.shape[3]))
        self._states = self._head.feed_back(output)
        self._step += 1
        return output[self._valid]

    def _choose(self, values: Tensor) -> Tensor:
        """values[pack, place, ...] of values [pack, position, ...]."""
        index = self._chosen.view(*self._chosen.shape, *(1,) * (values.dim() - 2))
        return values.gather(1, index.expand(-1, -1, *values.shape[2:]))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [pack, row, head, head_dim], k and v [pack, row, kv_head, head_dim], see the class."""
        shared = q.shape[2] // k.shape[2]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2).to(q.dtype)
        k, v = (heads.repeat_interleave(shared, dim=1) for heads in (k, v))
        if self._true is None:
            self._true = (k, v)
            mixed = F.scaled_dot_product_attention(q, k, v, self._sees)
            return mixed.transpose(1, 2).flatten(2)
        self._drafted.append((k, v))
        true_keys, true_values = self._true
        scale = q.shape[-1] ** -0.5
        to_true = (q @ true_keys.transpose(2, 3) * scale).masked_fill(~self._sees, -torch.inf)
        to_own = [(q * keys).sum(-1, keepdim=True) * scale for keys, _ in self._drafted]
        weights = torch.cat((to_true, *to_own), dim=-1).softmax(-1)
        length = true_keys.shape[2]
        mixed = weights[..., :length] @ true_values
        for place, (_, values) in enumerate(self._drafted):
            mixed = mixed + weights[..., length + place, None] * values
        return mixed.transpose(1, 2).flatten(2)


def _ahead(states: Tensor, distance: int) -> Tensor:
    """states[:, i + distance] at place i, zeros beyond the end."""
    return F.pad(states, (0, 0, 0, distance))[:, distance:]
