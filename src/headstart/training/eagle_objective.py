"""Training EAGLE heads: EAGLE-3's training-time test (arXiv:2503.01840, section 3.2), EAGLE-1's two losses
(arXiv:2401.15077, section 3.3), and P-EAGLE's masks (arXiv:2602.01469)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.heads.eagle import EagleHead
from headstart.heads.saving import save_head
from headstart.heads.tables import TargetTables
from headstart.layers.rotary import RotaryTable
from headstart.training.losses import LossName
from headstart.training.objective import Chains, HeldOut, StepLosses, Teacher
from headstart.training.states import Batch, shift
from headstart.training.text_lessons import BatchTextTokens, TextLessons

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
        unrolled = _Unrolled(self.head, self._embedding, self._rotary, batch, self._dropout)
        total = torch.zeros((), device=batch.tokens.device)
        token_weight = 1.0 if self.head.config.variant == "eagle3" else _TOKEN_WEIGHT
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
            if self.head.config.variant == "eagle":
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
        unrolled = _Unrolled(self.head, self._embedding, self._rotary, batch)
        for step in range(self.depth):
            masked = step > 0 and self.head.config.slots > 0
            chains.judge(step, self._logits(text_tokens, unrolled.step(masked=masked)))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        save_head(self.head, directory, record, torch.bfloat16)

    def _logits(self, text_tokens: BatchTextTokens | None, output: Tensor) -> Tensor:
        logits = self.head.logits(output, self._teacher.draft_head.to(output.dtype))
        return logits if text_tokens is None else torch.cat((logits, text_tokens.logits(output)), dim=-1)


class _Unrolled:
    """Steps of the head over the documents of a batch, one behind the other: axis [row].

    At step j, row i stands for the j-th row of a draft that begins after the true rows up to i: it reads the token
    1 + j places on, at position i + j, beside the state that step j - 1 left at i; it sees the true rows up to i of
    its own document, and the earlier steps at i. The first step computes all rows, as all are seen; the others only
    those at ``places``. A masked step reads the head's mask instead, beside its learnt state.

    Attributes:
        places: bool [pack, position] where a draft may begin.
    """

    def __init__(
        self, head: EagleHead, embedding: Tensor, rotary: RotaryTable, batch: Batch, dropout: float = 0.0
    ) -> None:
        self._head, self._embedding, self._rotary, self._batch = head, embedding, rotary, batch
        self._dropout = dropout
        self._rows = batch.documents >= 0
        self.places = batch.guessed(0)
        begins = self.places[self._rows]
        numbers = batch.documents[self._rows]
        last = torch.ones_like(begins)
        last[:-1] = numbers[1:] != numbers[:-1]
        self._ends = (1 + last.nonzero().squeeze(1)).tolist()
        self._documents = [slice(first, end) for first, end in pairwise((0, *self._ends))]
        self._choose(begins)
        self._states = head.fuse(F.dropout(batch.features[self._rows], dropout))
        self._seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in head.layers]
        """[layer][step] keys and values: the first step's are the true rows'."""
        self._step = 0

    def drop(self, kept: float) -> float:
        """Go on, after the first step, at about this share of the places; the share that it was."""
        stays = torch.rand(len(self._chosen), device=self._chosen.device) < kept
        if not stays.any():
            return 1.0
        before, chosen = len(self._chosen), self._chosen[stays]
        self._seen = [
            [true, *((keys[:, stays], values[:, stays]) for keys, values in drafts)] for true, *drafts in self._seen
        ]
        begins = torch.zeros(self._ends[-1], dtype=torch.bool, device=stays.device)
        begins[chosen] = True
        self.places = self.places.clone()
        self.places[self._rows] = begins
        self._states = self._states[stays]
        self._choose(begins)
        return len(chosen) / before

    def _choose(self, begins: Tensor) -> None:
        """Compute the rows ``begins`` bool [row] alone, after the first step."""
        self._chosen = begins.nonzero().squeeze(1)
        chosen_ends = begins.cumsum(0)[[end - 1 for end in self._ends]].tolist()
        self._chosen_of = [slice(first, end) for first, end in pairwise((0, *chosen_ends))]

    def step(self, masked: bool) -> Tensor:
        """The next step's output at ``places``: [place, hidden]. The first step is never ``masked``."""
        tokens = shift(self._batch.tokens, 1 + self._step, 0)[self._rows]
        positions = self._batch.positions[self._rows] + self._step
        first, config = self._step == 0, self._head.config
        if not first:
            tokens, positions = tokens[self._chosen], positions[self._chosen]
            if masked:
                tokens = torch.full_like(tokens, config.mask_token_id)
                self._states = self._head.fuse(self._head.mask_hidden[0]).expand(len(tokens), -1)
        embeddings = F.dropout(F.embedding(tokens, self._embedding).float(), self._dropout)
        reach = self._batch.tokens.shape[1] + self._step + 1
        rotate = partial(self._rotary.rotate, positions=positions, reach=reach)
        output: Tensor = self._head(embeddings, self._states, rotate, self._attend)
        if first:
            output = output[self._chosen]
        self._states = self._head.feed_back(output)
        self._step += 1
        return output

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [row, head, head_dim], k and v [row, kv_head, head_dim], see the class; document by document, so that what
        nobody sees is never computed."""
        shared = q.shape[1] // k.shape[1]
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1).to(q.dtype)
        k, v = (heads.repeat_interleave(shared, dim=0) for heads in (k, v))
        seen = self._seen[layer]
        seen.append((k, v))
        if len(seen) == 1:
            mixed = [
                F.scaled_dot_product_attention(q[None, :, rows], k[None, :, rows], v[None, :, rows], is_causal=True)[0]
                for rows in self._documents
            ]
        else:
            mixed = [
                self._mix(seen, q[:, rows], true_rows, rows)
                for true_rows, rows in zip(self._documents, self._chosen_of, strict=True)
            ]
        return torch.cat(mixed, dim=1).transpose(0, 1).flatten(1)

    def _mix(self, seen: Sequence[tuple[Tensor, Tensor]], q: Tensor, true_rows: slice, rows: slice) -> Tensor:
        """What the rows of one document, q [head, row, head_dim], see in a step after the first."""
        true, *drafts = seen
        keys, values = (heads[:, true_rows] for heads in true)
        scale = q.shape[-1] ** -0.5
        place = self._chosen[rows, None] - true_rows.start
        hidden = torch.arange(keys.shape[1], device=q.device) > place
        to_true = (q @ keys.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
        to_own = [(q * drafted[:, rows]).sum(-1, keepdim=True) * scale for drafted, _ in drafts]
        weights = torch.cat((to_true, *to_own), dim=-1).softmax(-1)
        length = keys.shape[1]
        mixed = weights[..., :length] @ values
        for step, (_, drafted) in enumerate(drafts):
            mixed = mixed + weights[..., length + step, None] * drafted[:, rows]
        return mixed


def _ahead(states: Tensor, distance: int) -> Tensor:
    """states[:, i + distance] at place i, zeros beyond the end."""
    return F.pad(states, (0, 0, 0, distance))[:, distance:]
