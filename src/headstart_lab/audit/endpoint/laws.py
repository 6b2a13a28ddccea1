"""The laws that draws must follow, from the log-probabilities that a server itself gives.

Log-probabilities are taken to be those before any transform, as OpenAI, vLLM, llama.cpp and Headstart give them. From
the best tokens of a position follows the law after a transform; what is not listed is one cell of its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headstart_lab.audit.endpoint.answers import Answer, Listed, Position
from headstart_lab.audit.endpoint.texts import hidden
from headstart_lab.audit.goodness import Goodness, chi_square_tail

OTHER = "\0other"
"""The outcome of every token, or text, whose own probability is not known."""
SAME_ROW, OTHER_ROW = 1e-3, 0.3
"""Nats by which a probability may be off: as printed for the row of the draw itself; as computed in another batch."""
_LEAST_EXPECTED = 5.0
_RANKS = (1, 2, 3, 5, 10)
"""Where cells of draws begin, by the rank of the drawn token among the most probable ones."""

Law = Mapping[str, float]
"""Key of a token, or OTHER -> probability; 0 where it cannot be drawn."""
Cut = Callable[[Sequence[Listed], float], Law | None]
"""From the tokens that a position lists, and by how many nats they may be off, to the law after a transform; None: it
does not follow from them."""


@dataclass(frozen=True)
class Transform:
    """Sampling parameters, and what they make of a law."""

    name: str
    fields: Mapping[str, Any]
    cut: Cut


def whole(listed: Sequence[Listed], margin: float = SAME_ROW) -> Law:
    """Temperature 1 and nothing else."""
    probs = {each.key: math.exp(each.logprob) for each in listed}
    return {**probs, OTHER: max(1.0 - sum(probs.values()), 0.0)}


def top_k(k: int, temperature: float = 1.0) -> Cut:
    """The k most probable tokens, at a temperature."""

    def cut(listed: Sequence[Listed], margin: float) -> Law | None:
        if len(listed) <= k or listed[k - 1].logprob - listed[k].logprob < margin:
            return None
        return _normal({each.key: math.exp(each.logprob / temperature) for each in listed[:k]})

    return cut


def top_p(p: float) -> Cut:
    """The fewest tokens whose probabilities reach p."""

    def cut(listed: Sequence[Listed], margin: float) -> Law | None:
        kept, mass = {}, 0.0
        for each in listed:
            probability = math.exp(each.logprob)
            kept[each.key] = probability
            mass += probability
            if abs(mass - p) < margin * min(mass, 1 - mass + 1e-3):
                return None
            if mass > p:
                # Which of two equals is the last is not known.
                following = listed[len(kept)] if len(kept) < len(listed) else None
                tied = following is None or each.logprob - following.logprob < margin
                return None if tied else _normal(kept)
        return None

    return cut


def min_p(p: float) -> Cut:
    """The tokens that are at least p times as probable as the best one."""

    def cut(listed: Sequence[Listed], margin: float) -> Law | None:
        edge = listed[0].logprob + math.log(p)
        if listed[-1].logprob > edge - margin or any(abs(each.logprob - edge) < margin for each in listed):
            return None
        return _normal({each.key: math.exp(each.logprob) for each in listed if each.logprob > edge})

    return cut


def biased(bias: Mapping[str, float]) -> Cut:
    """Logits with something added, by key; -100 bans a token."""

    def cut(listed: Sequence[Listed], margin: float) -> Law | None:
        least = math.exp(listed[-1].logprob)
        unknown = sum(least * math.exp(extra) for key, extra in bias.items() if key not in {e.key for e in listed})
        if unknown > 5e-3:
            return None
        weights = {each.key: math.exp(each.logprob) for each in listed}
        weights[OTHER] = max(1.0 - sum(weights.values()), 0.0)
        for key in weights.keys() & bias.keys():
            weights[key] = 0.0 if bias[key] <= -100 else weights[key] * math.exp(bias[key])
        return _normal(weights)

    return cut


def _normal(weights: Mapping[str, float]) -> Law:
    total = sum(weights.values())
    return {OTHER: 0.0, **{key: weight / total for key, weight in weights.items()}}


def listed_tokens(position: Position, asked: int) -> tuple[Listed, ...]:
    """The tokens whose probabilities a position lists whatever was drawn there.

    Of as many as were ``asked`` for the last is left out: servers put the drawn token in its place, or after it.
    """
    return position.top[: max(asked - 1, 1)]


@dataclass
class Calibration:
    """Draws at many positions against the laws of their own rows.

    At each position the cell of the drawn token is compared with the chance of each cell there. The sums of observed
    and expected counts differ by a martingale whose covariance is the sum of the positions' own, so the quadratic form
    of the difference follows the chi-square law, whatever the texts are.
    """

    transform: Transform
    asked: int
    """Best tokens that were asked for."""
    draws: int = 0
    undecided: int = 0
    """Positions whose law does not follow from what they list."""
    impossible: int = 0
    """Draws of what has no probability."""
    _observed: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros(len(_RANKS) + 2))
    _expected: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros(len(_RANKS) + 2))
    _covariance: np.ndarray[Any, np.dtype[np.float64]] = field(
        default_factory=lambda: np.zeros((len(_RANKS) + 2, len(_RANKS) + 2))
    )

    def add(self, answer: Answer) -> None:
        """Count all positions of an answer."""
        for position in answer.first.positions or ():
            listed = listed_tokens(position, self.asked)
            law = self.transform.cut(listed, SAME_ROW) if listed else None
            if law is None:
                self.undecided += 1
                continue
            self._count(position, listed, law)

    def _count(self, position: Position, listed: Sequence[Listed], law: Law) -> None:
        places = {each.key: sum(rank >= edge for edge in _RANKS) for rank, each in enumerate(listed)}
        places[OTHER] = len(_RANKS) + 1
        drawn = position.chosen.key if position.chosen.key in places else OTHER
        self.draws += 1
        self.impossible += law.get(drawn, 0.0) <= 0
        chances = np.zeros(len(_RANKS) + 2)
        for key, probability in law.items():
            chances[places[key]] += probability
        self._observed[places[drawn]] += 1
        self._expected += chances
        self._covariance += np.diag(chances) - np.outer(chances, chances)

    def goodness(self) -> Goodness:
        """The test; a share of the draws that is off by d in some cell is off by d at least in total variation."""
        merge = _merging(self._expected)
        difference = merge @ (self._observed - self._expected)
        covariance = merge @ self._covariance @ merge.T
        freedom = int(np.linalg.matrix_rank(covariance, tol=1e-6 * max(self.draws, 1)))
        variation = float(np.abs(self._observed - self._expected).sum()) / 2 / max(self.draws, 1)
        if self.impossible:
            return Goodness(self.draws, freedom + 1, math.inf, 0.0, variation)
        statistic = float(difference @ np.linalg.pinv(covariance, rcond=1e-9) @ difference)
        p_value = chi_square_tail(statistic, freedom) if freedom else 1.0
        return Goodness(self.draws, freedom + 1, statistic, p_value, variation)


def joint_law(transform: Transform, witnesses: Sequence[Answer], asked: int, length: int) -> dict[str, float]:
    """Text of so many tokens -> its probability, as far as answers with log-probabilities to the same prompt tell.

    OTHER holds what they do not tell. Texts are without white space around.
    """
    rows: dict[tuple[str, ...], tuple[Listed, ...]] = {}
    endings = set()
    for answer in witnesses:
        path: tuple[str, ...] = ()
        positions = answer.first.positions or ()
        for position in positions:
            rows.setdefault(path, listed_tokens(position, asked))
            path = (*path, position.chosen.key)
        if answer.first.finish_reason == "stop" and positions:
            last = positions[-1].chosen
            if last.text and not answer.text.endswith(last.text.rstrip()):
                endings.add(last.key)
    law: defaultdict[str, float] = defaultdict(float, {OTHER: 0.0})
    laws = {path: transform.cut(listed, OTHER_ROW) for path, listed in rows.items() if listed}
    texts = {path: {each.key: each.text for each in listed} for path, listed in rows.items()}

    def grow(path: tuple[str, ...], text: str, chance: float) -> None:
        following = laws.get(path)
        if len(path) == length:
            law[text.strip()] += chance
            return
        if following is None:
            law[OTHER] += chance
            return
        for key, probability in following.items():
            piece = texts[path].get(key, "")
            if not probability:
                continue
            if key == OTHER or "\ufffd" in piece:
                law[OTHER] += chance * probability
            elif key in endings or hidden(piece):
                law[text.strip()] += chance * probability
            else:
                grow((*path, key), text + piece, chance * probability)

    grow((), "", 1.0)
    return dict(law)


def two_samples(ours: Sequence[str], theirs: Sequence[str]) -> Goodness:
    """G-test of whether two samples of texts have one law; ``samples`` is the effective number n m / (n + m)."""
    counts = [Counter(map(str.strip, sample)) for sample in (ours, theirs)]
    totals = [max(count.total(), 1) for count in counts]
    pooled = sum(totals)
    # In an order, and so in cells, that say nothing of whose texts they are.
    table = [[count[text] for count in counts] for text in sorted(counts[0] | counts[1])]
    least = _LEAST_EXPECTED * pooled / min(totals)
    cells: list[list[int]] = [[0, 0]]
    for row in sorted(table, key=sum):
        if sum(cells[-1]) >= least:
            cells.append([0, 0])
        cells[-1] = [have + more for have, more in zip(cells[-1], row, strict=True)]
    if sum(cells[-1]) < least and len(cells) > 1:
        rest = cells.pop()
        cells[-1] = [have + more for have, more in zip(cells[-1], rest, strict=True)]
    statistic = 2 * sum(
        seen * math.log(seen * pooled / (sum(row) * totals[side]))
        for row in cells
        for side, seen in enumerate(row)
        if seen
    )
    variation = sum(abs(row[0] / totals[0] - row[1] / totals[1]) for row in table) / 2
    freedom = len(cells) - 1
    p_value = chi_square_tail(max(statistic, 0.0), freedom) if freedom else 1.0
    return Goodness(totals[0] * totals[1] // pooled, len(cells), statistic, p_value, variation)


def _merging(expected: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[merged cell, cell] of 0 and 1: cells that are expected too rarely are taken together with the next ones."""
    groups: list[list[int]] = [[]]
    for place in sorted(range(len(expected)), key=lambda place: expected[place]):
        groups[-1].append(place)
        if sum(expected[each] for each in groups[-1]) >= _LEAST_EXPECTED:
            groups.append([])
    rest = groups.pop()
    if groups:
        groups[-1] += rest
    merge = np.zeros((len(groups), len(expected)))
    for row, group in enumerate(groups):
        merge[row, group] = 1
    return merge
