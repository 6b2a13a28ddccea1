"""From the target's logits to the law of the next token, along one path's own history.

The order is vLLM's (docs/exactness.md 9): allowed and banned tokens, banned sequences, min_tokens, logit bias;
repetition, frequency and presence penalties; a greedy request stops here; temperature, min-p, top-k, top-p. Rows are
processed on the host, one at a time, logits in float32 and probabilities in float64, so that a row's law never depends
on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import LogitsError, RequestError
from headstart.sampling.history import PathHistory
from headstart.sampling.kernels import MASS_ERROR, RowKernels
from headstart.sampling.noise import IdArray, SequenceNoise
from headstart.sampling.params import SamplingParams

Row = NDArray[np.float32]
Weights = NDArray[np.float64]

_NUCLEUS_HEADS = (128, 1024, 4096)
"""Sizes of the head in which top-p looks first: sorting a whole vocabulary costs milliseconds."""


_LARGEST = np.finfo(np.float32).max
_SELECTED_AT_MOST = 1024
"""The rank up to which compiled code finds a logit faster than NumPy."""


class Transforms:
    """How one request turns logits into a law, prepared once. Stateless: the history is an argument."""

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        kernels: RowKernels | None = None,
    ) -> None:
        """``eos_token_ids``: banned until ``min_tokens``, like the request's stop tokens. ``kernels``: compiled code
        that may help.

        Raises:
            RequestError: ``params`` names a token outside [0, vocab_size).
        """
        params.check_vocabulary(vocab_size)
        self.params = params
        self.vocab_size = vocab_size
        self._kernels = kernels
        self._allowed = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        if params.bad_words:
            raise RequestError("bad_words are texts; where there is no tokenizer, give banned_sequences.", "bad_words")
        alone = [tokens[0] for tokens in params.banned_sequences if len(tokens) == 1]
        self._banned = _ids((*params.banned_token_ids, *alone))
        self._sequences = [tokens for tokens in params.banned_sequences if len(tokens) > 1]
        self._longest_beginning = max(map(len, self._sequences), default=1) - 1
        self._ends = _ids({*params.stop_token_ids, *(token for token in eos_token_ids if 0 <= token < vocab_size)})
        self._biased = _ids(params.logit_bias)
        self._bias: Row = np.asarray(list(params.logit_bias.values()), dtype=np.float32)
        self._edits = self._allowed is not None or bool(len(self._banned) + len(self._biased))
        self._counted = bool(params.frequency_penalty or params.presence_penalty)
        self._bars_runs = params.no_repeat_ngram_size > 0 or params.encoder_no_repeat_ngram_size > 0
        self._penalises = self._counted or params.repetition_penalty != 1
        self.greedy = params.greedy
        self.needs_history = self._penalises or self._bars_runs or params.min_tokens > 0 or bool(self._sequences)
        """Whether the law depends on earlier tokens, so that a history must be given."""
        self.only_best = self.greedy and not (self._edits or self.needs_history)
        """Whether the next token is always the one with the highest logit."""
        self.only_drawn = not (self.greedy or self._edits or self.needs_history)
        """Whether the next token is drawn, and temperature, top-k, top-p and min-p alone make the law."""

    def processed_logits(self, logits: Tensor, history: PathHistory | None = None) -> Tensor:
        """Logits [vocab] up to and including penalties, float32 on the host; greedy requests take their argmax.

        Where nothing changes, they share the memory of ``logits``.
        """
        return torch.from_numpy(self._processed(logits, history))

    def processed_log_probs(self, log_probs: Tensor, history: PathHistory | None = None) -> Row:
        """Log-probabilities [vocab] with bans, bias and penalties over them, float32 on the host.

        Raises:
            LogitsError: one is not a number.
        """
        if math.isnan(float(log_probs[0])):  # one that is not a number makes all of them so
            raise LogitsError(_NOT_A_NUMBER)
        return self._processed(log_probs, history)

    @property
    def may_raise(self) -> bool:
        """Whether a processed logit may be higher than it was, by a bias or a penalty below 0."""
        params = self.params
        return min(params.frequency_penalty, params.presence_penalty) < 0 or bool((self._bias > 0).any())

    def law(self, logits: Tensor, history: PathHistory | None = None) -> Tensor:
        """The law of the next token, float64 [vocab], summing to 1; one-hot if greedy.

        Raises:
            RequestError: a logit is not a number, or no token is left.
        """
        law = np.zeros(self.vocab_size)
        row = self._processed(logits, history)
        if self.greedy:
            law[_argmax(row)] = 1.0
            return torch.from_numpy(law)
        ids, weights = self._weights(row, _peak(row))
        weights /= weights.sum()
        if ids is None:
            return torch.from_numpy(weights)
        law[ids] = weights
        return torch.from_numpy(law)

    def sample(self, logits: Tensor, noise: SequenceNoise, position: int, history: PathHistory | None = None) -> int:
        """The token at ``position``: argmin of E / p over the position's noise, or the argmax if greedy.

        A draft and a target that sample the same position with the same noise agree as often as Gumbel coupling
        can (docs/exactness.md 6). Noise is computed only for tokens that may be drawn.

        Raises:
            RequestError: as ``law``.
        """
        row = self._processed(logits, history)
        if self.greedy:
            return _argmax(row)
        peak = _peak(row)
        if self.params.top_p == 1:
            # Candidates are found without computing weights; there is hardly ever more than one.
            ids = noise.contenders(position, row, self.params.temperature, self._floor(row, peak))
            if ids is not None and len(ids) == 1:
                return int(ids[0])
            if ids is not None:
                return noise.draw_at(position, self.vocab_size, self._relative(row[ids], peak), ids)
        ids, weights = self._weights(row, peak)
        return noise.draw_at(position, self.vocab_size, weights, ids)

    def peak_ratio(self, logits: Tensor, token: int, history: PathHistory | None = None) -> float:
        """p(token) / max p of the softmax of the processed logits, at temperature 1 and without truncation.

        Raises:
            RequestError: as ``law``.
        """
        row = self._processed(logits, history)
        return math.exp(float(row[token]) - float(row[_argmax(row)]))

    def _processed(self, logits: Tensor, history: PathHistory | None) -> Row:
        row: Row = logits.float().numpy(force=True)
        if row.shape != (self.vocab_size,):
            raise ValueError(f"logits have shape {row.shape}; one row of {self.vocab_size} is needed")
        if not self._edits and not self.needs_history:
            return row
        if history is None and self.needs_history:
            raise ValueError("penalties, min_tokens, banned sequences and n-grams need the history of the path")
        too_early = history is not None and history.output_length < self.params.min_tokens
        ends = self._sequence_ends(history) if self._sequences and history is not None else []
        if self._bars_runs and history is not None:
            ends += self._repeats(history)
        if not self._edits and not self._penalises and not too_early and not ends:
            return row
        if self._allowed is None:
            row = row.copy()
        else:
            allowed = row[self._allowed]
            row = np.full_like(row, -np.inf)
            row[self._allowed] = allowed
        row[self._banned] = -np.inf
        row[ends] = -np.inf
        if too_early:
            row[self._ends] = -np.inf
        row[self._biased] += self._bias
        if self._penalises and history is not None:
            self._penalise(row, *history.counts())
        return row

    def _sequence_ends(self, history: PathHistory) -> list[int]:
        """Tokens that would complete a banned sequence."""
        tail = tuple(history.tail(self._longest_beginning))
        return [tokens[-1] for tokens in self._sequences if tail[len(tail) + 1 - len(tokens) :] == tokens[:-1]]

    def _repeats(self, history: PathHistory) -> list[int]:
        """Tokens that would complete a run which must not come again."""
        said, read = self.params.no_repeat_ngram_size, self.params.encoder_no_repeat_ngram_size
        return [*(history.repeats(said) if said else ()), *(history.repeats_read(read) if read else ())]

    def _penalise(self, row: Row, ids: IdArray, counts: Row) -> None:
        params = self.params
        scores = row[ids]
        if params.repetition_penalty != 1:
            penalty = np.float32(params.repetition_penalty)
            finite = np.isfinite(scores)
            with np.errstate(over="ignore"):
                scores = np.where(scores < 0, scores * penalty, scores / penalty)
            # A penalty makes a token neither impossible nor certain, however far it goes.
            scores = np.where(finite, np.clip(scores, -_LARGEST, _LARGEST), scores)
        if self._counted:
            scores -= np.float32(params.frequency_penalty) * counts
            scores -= np.float32(params.presence_penalty) * (counts > 0)
        row[ids] = scores

    def _weights(self, row: Row, peak: float) -> tuple[IdArray | None, Weights]:
        """Tokens that may be drawn, ascending (None: all), and their probabilities up to a common factor."""
        floor, top_p = self._floor(row, peak), self.params.top_p
        ids = np.flatnonzero(row >= _float32_from(floor)) if floor > -math.inf else None
        if top_p < 1 and ids is None:
            head = self._nucleus_head(row, peak)
            if head is not None:
                return head
        weights = self._relative(row if ids is None else row[ids], peak)
        if top_p < 1:
            kept = _nucleus(weights, top_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        return ids, weights

    def _relative(self, logits: Row, peak: float) -> Weights:
        """Probabilities as multiples of the highest."""
        weights = logits.astype(np.float64)
        weights -= peak
        with np.errstate(over="ignore"):
            weights /= self.params.temperature
        return np.exp(weights, out=weights)

    def _floor(self, row: Row, peak: float) -> float:
        """The lowest logit that min-p and top-k keep, in whichever order they are applied; -inf: all."""
        params = self.params
        floor = -math.inf
        if params.min_p > 0:
            floor = peak + params.temperature * math.log(params.min_p)
        if 0 < params.top_k < self.vocab_size:
            floor = max(floor, self._ranked(row, params.top_k))
        return floor

    def _ranked(self, row: Row, rank: int) -> float:
        """The rank-th highest logit, from 1."""
        if self._kernels is not None and rank <= _SELECTED_AT_MOST:
            return self._kernels.ranked(row, rank)
        place = len(row) - rank
        return float(np.partition(row, place)[place])

    def _nucleus_head(self, row: Row, peak: float) -> tuple[IdArray, Weights] | None:
        """Top-p of a whole row without all its weights; None where that would be too close to call."""
        compiled = self._kernels
        if compiled is None or len(row) <= _NUCLEUS_HEADS[0]:
            return None
        wanted = self.params.top_p * compiled.mass(row, peak, self.params.temperature)
        least, most = wanted * (1 - 2 * MASS_ERROR), wanted * (1 + 2 * MASS_ERROR)
        for size in _NUCLEUS_HEADS:
            if size >= len(row):
                break
            head = np.flatnonzero(row >= np.float32(self._ranked(row, size)))
            weights = self._relative(row[head], peak)
            ranking = np.argsort(-weights, kind="stable")
            mass = np.cumsum(weights[ranking])
            if mass[-1] < most:
                continue
            last, other = np.searchsorted(mass, (least, most)).tolist()
            # Tokens after the head may have the weight of its last one.
            if last != other or weights[ranking[last]] == weights[ranking[-1]]:
                return None
            kept = np.sort(ranking[: last + 1])
            return head[kept], weights[kept]
        return None


def logprobs(logits: Tensor, token: int, count: int) -> tuple[float, dict[int, float], int]:
    """Log-probability of ``token``; of the ``count`` best tokens (-1: all), best first, among equals the lowest id
    first; its rank.

    The rank is 1 plus the number of more probable tokens.
    ``logits`` [vocab] are the target's own: log-softmax before any transform, in float32.

    Raises:
        RequestError: a logit is not a number.
    """
    row: Row = logits.float().log_softmax(-1).numpy(force=True)
    if math.isnan(row[token]):
        raise LogitsError(_NOT_A_NUMBER)
    best: IdArray = np.zeros(0, dtype=np.int64)
    if count == -1:
        best = np.argsort(-row, kind="stable")
    elif count:
        kth = max(len(row) - count, 0)
        near = np.flatnonzero(row >= np.partition(row, kth)[kth])
        best = near[np.argsort(-row[near], kind="stable")][:count]
    rank = 1 + int(np.count_nonzero(row > row[token]))
    return float(row[token]), {int(other): float(row[other]) for other in best}, rank


def checked_best(token: int) -> int:
    """``token``, a row's best as a pass found it.

    Raises:
        LogitsError: it is -1, for the row has none.
    """
    if token < 0:
        raise LogitsError(_NOT_A_NUMBER)
    return token


def _nucleus(weights: Weights, top_p: float) -> IdArray:
    """Indices, ascending, of the most probable tokens: each whose mass ranked strictly above it is below top_p.

    Equal weights rank by index. The head of the ranking is the same whether the rest is sorted or not.
    """
    wanted = top_p * float(weights.sum())
    for size in (*_NUCLEUS_HEADS, len(weights)):
        cut = len(weights) - size
        head = np.flatnonzero(weights >= np.partition(weights, cut)[cut]) if cut > 0 else np.arange(len(weights))
        ranking = head[np.argsort(-weights[head], kind="stable")]
        mass = np.cumsum(weights[ranking])
        if mass[-1] >= wanted or cut <= 0:
            break
    return np.sort(ranking[: int(np.searchsorted(mass, wanted)) + 1])


def _peak(row: Row) -> float:
    peak = float(row.max())
    _check_peak(peak)
    return peak


def _float32_from(floor: float) -> np.float32:
    """The lowest float32 that is not below ``floor``: comparing a row with it does not widen the row."""
    with np.errstate(over="ignore"):
        nearest = np.float32(floor)
    return nearest if nearest >= floor else np.nextafter(nearest, np.float32(math.inf))


_NOT_A_NUMBER = "the model's logits hold a value that is not a finite number; nothing can be sampled from them."


def _check_peak(peak: float) -> None:
    if peak == -math.inf:
        raise RequestError(
            "no token is left to sample: structured_outputs, logit_bias, allowed_token_ids, banned_token_ids, "
            "bad_words, no_repeat_ngram_size and min_tokens together forbid all of them; allow at least one."
        )
    if not math.isfinite(peak):
        raise LogitsError(_NOT_A_NUMBER)


def _argmax(row: Row) -> int:
    # NumPy takes the lowest id among equals and any NaN before a number; it is also far quicker than torch here.
    token = int(row.argmax())
    _check_peak(float(row[token]))
    return token


def _ids(tokens: Iterable[int]) -> IdArray:
    return np.fromiter(tokens, dtype=np.int64)
