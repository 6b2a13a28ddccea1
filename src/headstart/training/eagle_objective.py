"""Training EAGLE heads: EAGLE-3's training-time test (arXiv:2503.01840, section 3.2), and EAGLE-1's two losses
(arXiv:2401.15077, section 3.3)."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.heads.eagle import EagleHead, RotaryTable
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
        depth: int = 5,
    ) -> None:
        self.head = head
        self._teacher = Teacher(tables, teacher_ids)
        self._embedding = tables.embedding if head.embedding is None else head.embedding
        self._loss, self._steps, self._decay, self.depth = loss, steps, decay, depth
        self._rotary = RotaryTable(head.config.rope, torch.float32, tables.head.device)

    def loss(self, batch: Batch) -> Tensor:
        losses = StepLosses(self._teacher, batch, self._loss, self._decay)
        unrolled = _Unrolled(self.head, self._embedding, self._rotary, batch)
        total = torch.zeros((), device=batch.tokens.device)
        token_weight = 1.0 if self.head.config.variant == "eagle3" else _TOKEN_WEIGHT
        for step in range(self._steps):
            output = unrolled.step()
            places = losses.places(step)
            total = total + token_weight * losses.loss(step, places, self._logits(output[places]))
            if self.head.config.variant == "eagle":
                wanted = batch.said_ahead(2 + step)
                imitated = _ahead(batch.final, 1 + step)[wanted]
                distance = F.smooth_l1_loss(output[wanted].float(), imitated, reduction="sum") / output.shape[-1]
                scale = batch.said_ahead(2).sum().clamp(min=1)
                total = total + _FEATURE_WEIGHT * self._decay**step * distance / scale
        return total

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        chains = Chains(self._teacher, batch)
        unrolled = _Unrolled(self.head, self._embedding, self._rotary, batch)
        for step in range(self.depth):
            chains.judge(step, self._logits(unrolled.step()[chains.places]))
        return chains.result()

    def _logits(self, output: Tensor) -> Tensor:
        return self.head.logits(output, self._teacher.draft_head.to(output.dtype))


class _Unrolled:
    """Steps of the head over whole packs.

    At step j, place i stands for the j-th row of a draft that begins behind the true rows up to i: it reads the token
    1 + j places on, at position i + j, beside the state that step j - 1 left at i; it sees the true rows up to i of
    its own document, and the earlier steps at i.
    """

    def __init__(self, head: EagleHead, embedding: Tensor, rotary: RotaryTable, batch: Batch) -> None:
        self._head, self._embedding, self._rotary, self._batch = head, embedding, rotary, batch
        self._states = head.fuse(batch.features)
        length = batch.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=batch.tokens.device).tril()
        self._sees = (causal & (batch.documents[:, :, None] == batch.documents[:, None, :]))[:, None]
        self._true: tuple[Tensor, Tensor] | None = None
        self._drafted: list[tuple[Tensor, Tensor]] = []
        self._step = 0

    def step(self) -> Tensor:
        """The next step's output [pack, position, hidden]."""
        batch = self._batch
        embeddings = F.embedding(shift(batch.tokens, 1 + self._step, 0), self._embedding).float()
        positions = batch.positions + self._step
        reach = batch.tokens.shape[1] + self._step + 1
        rotate = partial(self._rotary.rotate, positions=positions, reach=reach)
        output: Tensor = self._head(embeddings, self._states, rotate, self._attend)
        self._states = self._head.feed_back(output)
        self._step += 1
        return output

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [pack, position, head, head_dim], k and v [pack, position, kv_head, head_dim], see the class."""
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
