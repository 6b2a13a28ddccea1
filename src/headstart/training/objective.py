"""What is trained, and on what: the part of a training that depends on the kind of head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.models.heads.loading import Head
from headstart.models.heads.tables import TargetTables
from headstart.training.losses import ROW_LOSSES, LossName
from headstart.training.states import Batch, shift


@dataclass(frozen=True)
class HeldOut:
    """How guesses on held-out text would have fared, counted over places that a round could begin at."""

    rows: int
    """Places."""
    right: Tensor
    """int64 [depth] guesses that are the target's favourite (what greedy decoding accepts), true text above."""
    accepted: Tensor
    """int64 [depth] guesses that are, like all above them, what the text says: accepted had it been decoded."""

    def __add__(self, other: HeldOut) -> HeldOut:
        return HeldOut(self.rows + other.rows, self.right + other.right, self.accepted + other.accepted)

    @property
    def accuracy(self) -> list[float]:
        return [count / max(self.rows, 1) for count in self.right.tolist()]

    @property
    def accepted_length(self) -> float:
        """Tokens of a round with a chain of best guesses, the correction or bonus included."""
        return 1 + int(self.accepted.sum()) / max(self.rows, 1)


class Objective(Protocol):
    """A head in training."""

    depth: int
    """Depths that are judged on held-out text."""

    @property
    def head(self) -> Head: ...

    def loss(self, batch: Batch) -> Tensor:
        """A scalar to be made small."""
        ...

    def held_out(self, batch: Batch) -> HeldOut:
        """What the head guesses on text that it does not learn from."""
        ...


class Teacher:
    """The target's own law, cut to the tokens that the draft can say.

    Args:
        tables: the target's.
        ids: int64 [draft vocab] target ids.
        softcap: of the target's logits (Gemma 2), None for none.
    """

    def __init__(self, tables: TargetTables, ids: Tensor, softcap: float | None = None) -> None:
        self.ids = ids
        self.said = torch.zeros(len(tables.head), dtype=torch.bool, device=ids.device)
        self.said[ids] = True
        self._head = tables.head
        self.draft_head = tables.head if len(ids) == len(tables.head) else tables.head[ids]
        self._softcap = softcap

    def probs(self, final: Tensor) -> Tensor:
        """float32 [row, draft vocab], summing to 1, after states [row, hidden]."""
        logits = F.linear(final.to(self.draft_head.dtype), self.draft_head).float()
        return self._capped(logits).softmax(-1)

    @torch.no_grad()
    def favourites(self, final: Tensor, chunk: int = 1024) -> Tensor:
        """int64 [row] the likeliest of all target tokens after states [row, hidden]."""
        states = final.to(self._head.dtype)
        starts = range(0, max(len(states), 1), chunk)
        return torch.cat([F.linear(states[first : first + chunk], self._head).argmax(-1) for first in starts])

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap


class StepLosses:
    """The losses of one batch, depth by depth.

    A guess at place i of depth j is about the token 2 + j places on; rows that nothing is learnt from are never
    computed. The sum over rows is divided by all places that say something at the first depth, those masked for what
    the draft cannot say included.
    """

    def __init__(self, teacher: Teacher, batch: Batch, loss: LossName, decay: float) -> None:
        self._teacher, self._batch = teacher, batch
        self._row_loss, self._decay = ROW_LOSSES[loss], decay
        self._scale = batch.said_ahead(2).sum().clamp(min=1)
        # The target's law is the same at all depths that guess a token: computed once, where it says something next.
        says = batch.said_ahead(1)
        final = batch.final[says]
        self._row_of = says.flatten().cumsum(0).view_as(says) - 1
        with torch.no_grad():
            self._probs = teacher.probs(final)
            reduced = len(teacher.ids) < len(teacher.said)
            self._in_reach = teacher.said[teacher.favourites(final)] if reduced else None

    def places(self, depth: int) -> Tensor:
        """bool [pack, position] where a guess of this depth is learnt."""
        wanted = self._batch.said_ahead(2 + depth)
        if self._in_reach is None or not wanted.any():
            return wanted
        rows = shift(self._row_of, 1 + depth, 0)
        return wanted & self._in_reach[rows.clamp(min=0)]

    def loss(self, depth: int, places: Tensor, logits: Tensor) -> Tensor:
        """Weighted share of one depth; ``logits`` [place, draft vocab] of the guesses at ``places``."""
        rows = shift(self._row_of, 1 + depth, 0)[places]
        total = self._row_loss(logits.float(), self._probs[rows]).sum()
        return self._decay**depth * total / self._scale


class Chains:
    """Counts how best guesses fare at the places of a batch where the next token but one was said by the target."""

    def __init__(self, teacher: Teacher, batch: Batch) -> None:
        self._teacher, self._batch = teacher, batch
        self.places = batch.said_ahead(2)
        self._alive = torch.ones(int(self.places.sum()), dtype=torch.bool, device=batch.tokens.device)
        says = batch.said_ahead(1)
        self._favourites = torch.full_like(batch.tokens, -1)
        self._favourites[says] = teacher.favourites(batch.final[says])
        self._right: list[Tensor] = []
        self._accepted: list[Tensor] = []

    def judge(self, depth: int, logits: Tensor) -> None:
        """Take in the guesses of one depth, the first first: [place, draft vocab]."""
        guesses = self._teacher.ids[logits.argmax(-1)]
        exists = self._batch.said_ahead(2 + depth)[self.places]
        favourites = shift(self._favourites, 1 + depth, -1)[self.places]
        self._right.append((exists & (guesses == favourites)).sum())
        self._alive &= exists & (guesses == shift(self._batch.tokens, 2 + depth, -1)[self.places])
        self._accepted.append(self._alive.sum())

    def result(self) -> HeldOut:
        return HeldOut(len(self._alive), torch.stack(self._right).cpu(), torch.stack(self._accepted).cpu())


def trainable(head: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters that are learnt, in a fixed order."""
    return [(name, parameter) for name, parameter in head.named_parameters() if parameter.requires_grad]
