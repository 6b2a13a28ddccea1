"""What the target's own noise tells about the tokens to come.

Guesses that are point masses are verified by a walk: at each position a request at temperature T > 0 says
argmax(z + T g), z the target's logits and g the Gumbel noise of that position (docs/exactness.md 5, 6). The noise is a
function of seed, sample and position, so a drafter knows it before the target is asked, and may rank its guesses by
its own logits with the same noise. What is said stays a function of the target and the noise alone, whatever was
guessed, so the law is the target's (docs/decisions/0024).

A request whose guesses look at this noise must not have draws verified in other rounds: which rule decides would then
depend on the noise, and the law would be biased. Drafters that rank by noise make point masses alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.sampling.params import SamplingParams

_NUCLEUS = 256
"""Tokens among which top-p is looked for."""
_REACH = 12.0
"""Tokens so many temperatures below a row's best have no noise: it saves one in some hundred thousand of them, and
most of a draft's noise would be theirs."""


class NoiseRanking:
    """Turns a drafter's logits into scores whose softmax says how likely each token is to be said.

    Greedy requests keep their logits, the others get temperature times the position's noise on top: as the temperature
    falls, the one becomes the other.

    Args:
        sequences: that are drafted for.
        ids: int64 [column] what token each column of the logits stands for.
        vocab_size: of the target; ids from there on are padding.
        further_ids: int64 [sequence, column] of the columns behind those.
    """

    def __init__(
        self, sequences: Sequence[SequenceView], ids: Tensor, vocab_size: int, further_ids: Tensor | None = None
    ) -> None:
        self._sequences = sequences
        self._further_ids = further_ids
        self._vocab_size = vocab_size
        self.sampled = not all(sequence.params.greedy for sequence in sequences)
        """Scores are not the logits themselves."""
        self._ids = ids.clamp(max=vocab_size - 1) if self.sampled else ids

    def scores(self, logits: Tensor, depth: int) -> Tensor:
        """``logits`` [sequence, beam, column] of tokens ``depth`` places after the root, as scores of that shape."""
        if not self.sampled:
            return logits
        return torch.stack([self.of(place, rows, depth) for place, rows in enumerate(logits)])

    def of(self, place: int, rows: Tensor, depth: int) -> Tensor:
        """The same for one of the sequences: [beam, column]."""
        sequence = self._sequences[place]
        params = sequence.params
        if params.greedy:
            return rows
        if sequence.speculation.lossy is not None:
            return rows / params.temperature  # lossy rules do not walk: the noise decides nothing there
        position = len(sequence.tokens) + depth - 1
        ids = self._ids if self._further_ids is None else torch.cat((self._ids, self._further_ids[place]))
        noise = sequence.noise.position_exponentials(position, self._vocab_size, ids)
        far = rows < rows.amax(-1, keepdim=True) - _REACH * params.temperature
        rows = _truncated(rows, params)
        return torch.where(far, rows, rows - noise.log_().to(rows) * params.temperature)


def _truncated(rows: Tensor, params: SamplingParams) -> Tensor:
    """Logits [row, column] without those that the request's top-k, top-p and min-p would take from these rows."""
    if params.min_p > 0:
        rows = _from(rows, rows.amax(-1, keepdim=True) + params.temperature * math.log(params.min_p))
    if 0 < params.top_k < rows.shape[-1]:
        rows = _from(rows, rows.topk(params.top_k).values[:, -1:])
    if params.top_p < 1:
        cold = rows / params.temperature
        best = rows.topk(min(_NUCLEUS, rows.shape[-1])).values
        mass = (best / params.temperature - cold.logsumexp(-1, keepdim=True)).exp_()
        above = mass.cumsum(-1) - mass
        last = (above < params.top_p).sum(-1, keepdim=True) - 1
        rows = _from(rows, best.gather(-1, last.clamp(min=0)))
    return rows


def _from(rows: Tensor, floor: Tensor) -> Tensor:
    return rows.masked_fill(rows < floor, -torch.inf)
