"""What is trained, and on what: the part of a training that depends on the kind of head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.drafting.heads.tables import TargetTables
from headstart_train.choices import LossName
from headstart_train.objectives.losses import ROW_LOSSES, sum_by_rows
from headstart_train.objectives.text_lessons import BatchTextTokens
from headstart_train.states import Batch, shift

_ROWS = 2048
"""States that are looked at together without gradients."""
_UNSEEN = -1e4
"""Logit of a token that cannot be."""


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
    def head(self) -> nn.Module:
        """What is learnt: its parameters and buffers are what a checkpoint holds."""
        ...

    def loss(self, batch: Batch) -> Tensor:
        """A scalar to be made small. May draw from torch's generator, which the trainer seeds for every step."""
        ...

    def held_out(self, batch: Batch) -> HeldOut:
        """What the head guesses on text that it does not learn from."""
        ...

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        """Write what a drafter reads, with ``record`` in its description."""
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
        self.draft_head = tables.head if len(ids) == len(tables.head) else tables.head[ids]
        self._softcap = softcap

    def logits(self, final: Tensor, more: Tensor | None = None) -> Tensor:
        """float32 [row, draft vocab] by the target's own head, after states [row, hidden]; behind them those of
        ``more`` of its rows [token, hidden]."""
        head = self.draft_head if more is None else torch.cat((self.draft_head, more))
        logits = F.linear(final.to(head.dtype), head).float()
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap


class StepLosses:
    """The losses of one batch, depth by depth.

    A guess at place i of depth j is about the token 2 + j places on; rows that nothing is learnt from are never
    computed. The sum over rows is divided by all places that say something at the first depth, those masked for what
    the draft cannot say included.

    Args:
        head: what is learnt.
        text_tokens: tokens that a guess may be besides, where the text holds them: their logits stand behind those of
            the draft vocabulary.
    """

    def __init__(
        self,
        head: nn.Module,
        teacher: Teacher,
        batch: Batch,
        loss: LossName,
        decay: float,
        text_tokens: BatchTextTokens | None = None,
    ) -> None:
        self._parameters: list[Tensor] = [parameter for _, parameter in trainable(head)]
        if text_tokens is not None:
            self._parameters.append(text_tokens.rows)
        self._made = () if text_tokens is None else (text_tokens.made_rows,)
        self._teacher, self._batch = teacher, batch
        self._row_loss, self._decay = ROW_LOSSES[loss], decay
        self._scale = batch.guessed(0).sum().clamp(min=1)
        # The target's law is the same at all depths that guess a token: computed once, where it says something next.
        says = batch.said_ahead(1)
        final = batch.final[says]
        self._row_of = says.flatten().cumsum(0).view_as(says) - 1
        with torch.no_grad():
            self._unseen = None if text_tokens is None else ~text_tokens.seen[says]
            more = None if text_tokens is None else text_tokens.target_rows
            self._probs = _hide(teacher.logits(final, more), self._unseen).softmax(-1)
            favourites = batch.favourites[says]
            self._in_reach = teacher.said[favourites] if len(teacher.ids) < len(teacher.said) else None
            if self._in_reach is not None and text_tokens is not None:
                self._in_reach |= text_tokens.holds(favourites, says)

    def places(self, depth: int) -> Tensor:
        """bool [pack, position] where a guess of this depth is learnt."""
        wanted = self._batch.guessed(depth)
        if self._in_reach is None or not wanted.any():
            return wanted
        rows = shift(self._row_of, 1 + depth, 0)
        return wanted & self._in_reach[rows.clamp(min=0)]

    def loss(
        self,
        depth: int,
        places: Tensor,
        states: Tensor,
        say: Callable[[Tensor], Tensor],
        confidence: Callable[[Tensor], Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Weighted share of one depth.

        Args:
            states: [place, ...] of the guesses at ``places``.
            say: their logits, [place, draft vocab] of some of ``states``.
            confidence: logits [place] of how likely guesses are accepted, learnt as well: drawn from the head's law, a
                guess is with the probability that this and the target's law have in common.
            weights: [place] of the guesses; None: the decay of this depth.
        """
        laws = shift(self._row_of, 1 + depth, 0)[places]
        weights = torch.full(laws.shape, self._decay**depth, device=laws.device) if weights is None else weights

        def of_rows(states: Tensor, rows: slice) -> Tensor:
            own = laws[rows]
            logits = self._logits(say, states, own)
            loss = self._row_loss(logits, self._probs[own])
            if confidence is not None:
                accepted = _in_common(logits.detach(), self._probs[own])
                loss = loss + F.binary_cross_entropy_with_logits(confidence(states), accepted, reduction="none")
            return (weights[rows] * loss).sum()

        return sum_by_rows(of_rows, states, self._parameters, self._made) / self._scale

    @torch.no_grad()
    def accepted(self, depth: int, places: Tensor, states: Tensor, say: Callable[[Tensor], Tensor]) -> Tensor:
        """[place] what the head's law and the target's have in common; arguments as ``loss``."""
        laws = shift(self._row_of, 1 + depth, 0)[places]
        parts = zip(torch.split(states, _ROWS), torch.split(laws, _ROWS), strict=True)
        return torch.cat([_in_common(self._logits(say, part, own), self._probs[own]) for part, own in parts])

    def _logits(self, say: Callable[[Tensor], Tensor], states: Tensor, laws: Tensor) -> Tensor:
        """float32 [place, draft vocab + token] after ``states``, of guesses that ``laws`` [place] are the laws of."""
        return _hide(say(states).float(), None if self._unseen is None else self._unseen[laws])


class Chains:
    """Counts how best guesses fare at the places of a batch where the next token but one was said by the target.

    Args:
        among: bool [pack, position] places that are looked at; None: all of them.
        text_tokens: as in ``StepLosses``.
    """

    def __init__(
        self, teacher: Teacher, batch: Batch, among: Tensor | None = None, text_tokens: BatchTextTokens | None = None
    ) -> None:
        self._teacher, self._batch, self._text_tokens = teacher, batch, text_tokens
        self.places = batch.guessed(0) if among is None else batch.guessed(0) & among
        self._alive = torch.ones(int(self.places.sum()), dtype=torch.bool, device=batch.tokens.device)
        self._right: list[Tensor] = []
        self._accepted: list[Tensor] = []

    def judge(self, depth: int, logits: Tensor) -> None:
        """Take in the guesses of one depth, the first first: [place, draft vocab], and logits of text tokens."""
        ids = self._teacher.ids
        if self._text_tokens is not None:
            logits = _hide(logits, ~self._text_tokens.seen[self.places])
            ids = torch.cat((ids, self._text_tokens.ids))
        self.judge_tokens(depth, ids[logits.argmax(-1)])

    def judge_tokens(self, depth: int, guesses: Tensor) -> None:
        """The same, given as int64 [place] target ids."""
        exists = self._batch.guessed(depth)[self.places]
        favourites = shift(self._batch.favourites, 1 + depth, -1)[self.places]
        self._right.append((exists & (guesses == favourites)).sum())
        self._alive &= exists & (guesses == shift(self._batch.tokens, 2 + depth, -1)[self.places])
        self._accepted.append(self._alive.sum())

    def result(self) -> HeldOut:
        return HeldOut(len(self._alive), torch.stack(self._right).cpu(), torch.stack(self._accepted).cpu())


def _in_common(logits: Tensor, probs: Tensor) -> Tensor:
    """[row] how likely what is drawn from ``logits`` is accepted."""
    return torch.minimum(logits.softmax(-1), probs).sum(-1).clamp(0, 1)


def _hide(logits: Tensor, unseen: Tensor | None) -> Tensor:
    """Logits [row, draft vocab + token] with next to no chance for tokens that the text does not hold: bool
    [row, token]. A number, since no chance at all times its logarithm would be none."""
    if unseen is None:
        return logits
    draft = logits.shape[-1] - unseen.shape[-1]
    return torch.cat((logits[:, :draft], logits[:, draft:].masked_fill(unseen, _UNSEEN)), dim=-1)


def trainable(head: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters that are learnt, in a fixed order."""
    return [(name, parameter) for name, parameter in head.named_parameters() if parameter.requires_grad]
