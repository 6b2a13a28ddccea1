"""Whether samples follow a law that is known exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import TypeVar

import torch

Outcome = TypeVar("Outcome", bound=Hashable)
_LEAST_EXPECTED = 5.0
"""Cells with less are taken together: the statistic's law is known for larger ones only."""


@dataclass(frozen=True)
class Goodness:
    """The outcome of a G-test."""

    samples: int
    cells: int
    """After rare ones were taken together."""
    statistic: float
    p_value: float
    """Chance of a statistic as large if the samples follow the law; 0 where the impossible was seen."""
    total_variation: float
    """Half the summed differences of frequencies and probabilities, all cells apart."""


def g_test(samples: Iterable[Outcome], law: Mapping[Outcome, float]) -> Goodness:
    """G = 2 sum O log(O / E) over the cells of ``law`` (outcome -> probability), against its chi-square law.

    Too few samples for two cells make a test that nothing can fail: its p-value is 1.
    """
    counts = Counter(samples)
    total = counts.total()
    outcomes = counts.keys() | law.keys()
    variation = sum(abs(counts[outcome] / max(total, 1) - law.get(outcome, 0.0)) for outcome in outcomes) / 2
    if any(law.get(outcome, 0.0) <= 0 for outcome in counts):
        return Goodness(total, len(law), float("inf"), 0.0, variation)
    pairs = _merged([(counts[outcome], probability * total) for outcome, probability in law.items() if probability > 0])
    statistic = 2 * sum(seen * log(seen / expected) for seen, expected in pairs if seen)
    freedom = len(pairs) - 1
    if freedom < 1:
        return Goodness(total, len(pairs), statistic, 1.0, variation)
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    p_value = float(torch.special.gammaincc(half[0], half[1]))
    return Goodness(total, len(pairs), statistic, p_value, variation)


def _merged(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """(seen, expected) cells, the rarest together until each is expected often enough."""
    cells: list[tuple[int, float]] = []
    seen, expected = 0, 0.0
    for count, mean in sorted(pairs, key=lambda pair: pair[1]):
        seen, expected = seen + count, expected + mean
        if expected >= _LEAST_EXPECTED:
            cells.append((seen, expected))
            seen, expected = 0, 0.0
    if expected > 0 and cells:
        last_seen, last_expected = cells.pop()
        seen, expected = seen + last_seen, expected + last_expected
    if expected > 0:
        cells.append((seen, expected))
    return cells
