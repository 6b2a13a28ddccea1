"""Whether samples follow a law that is known exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import TypeVar

from headstart_lab.extra import missing

try:
    from scipy import special
except ImportError as error:
    raise missing(error) from error

Outcome = TypeVar("Outcome", bound=Hashable)
_LEAST_EXPECTED = 5.0
"""Cells with less are taken together: the statistic's law is known for larger ones only."""


WEAK = 0.3
"""A verdict is weak where a law may be so far off (total variation) and not be found."""


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
    largest_statistic: float = inf
    """What the statistic would be if all samples had fallen into the rarest cell: it cannot be more."""

    def detectable(self, least_p_value: float, power: float = 0.9) -> float | None:
        """The total variation over the cells from which on a wrong law fails the test with chance ``power`` at least.

        A law that is off by d has a statistic around 2 * samples * KL, which is 4 * samples * d**2 at least (Pinsker's
        inequality), and follows the noncentral chi-square law of that parameter.

        Args:
            least_p_value: below it the test fails.

        Returns:
            None: no possible samples fail, or not even a law that is as wrong as can be fails so often.
        """
        freedom = self.cells - 1
        if freedom < 1:
            return None
        critical = special.chdtri(freedom, least_p_value)
        if self.largest_statistic < critical:
            return None
        distance = sqrt(special.chndtrinc(critical, freedom, 1 - power) / (4 * self.samples))
        return distance if distance < 1 else None


def g_test(samples: Iterable[Outcome], law: Mapping[Outcome, float]) -> Goodness:
    """G = 2 sum O log(O / E) over the cells of ``law`` (outcome -> probability), against its chi-square law.

    Too few samples for two cells make a test that nothing can fail (but what is impossible): its p-value is 1.
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
    rarest = min((expected for _, expected in pairs), default=0.0)
    largest = 2 * total * log(total / rarest) if rarest else 0.0
    p_value = chi_square_tail(max(statistic, 0.0), freedom) if freedom >= 1 else 1.0
    return Goodness(total, len(pairs), statistic, p_value, variation, largest)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Chance of more than ``statistic`` under the chi-square law."""
    return float(special.chdtrc(freedom, statistic))


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
