"""Figures that the sources print, as printed, to set beside what the formulas give.

The paper is Leviathan et al. 2023; the n-gram chapter is akunu's "Speculative Decoding with N-grams".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TradeOff:
    """A row of the paper's table 1 (c = c_hat = 0)."""

    alpha: float
    gamma: int
    operations: float
    speed: float


TABLE_1 = (
    TradeOff(0.6, 2, 1.53, 1.96),
    TradeOff(0.7, 3, 1.58, 2.53),
    TradeOff(0.8, 2, 1.23, 2.44),
    TradeOff(0.8, 5, 1.63, 3.69),
    TradeOff(0.9, 2, 1.11, 2.71),
    TradeOff(0.9, 10, 1.60, 6.86),
)


@dataclass(frozen=True)
class Walltime:
    """A row of the paper's table 4: T5-XXL (11B) on a TPU v4."""

    task: str
    draft: str
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float
    """Column EXP, from Theorem 3.8."""
    measured: float
    """Column EMP."""


TABLE_4 = (
    Walltime("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Walltime("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Walltime("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Walltime("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Walltime("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Walltime("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Walltime("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Walltime("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Walltime("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Walltime("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Walltime("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Walltime("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)


@dataclass(frozen=True)
class Lenience:
    """A point of the paper's appendix A.5: T5-XXL and T5-small, EnDe."""

    temperature: int
    lenience: float
    alpha: float
    c: float
    gamma: int | None
    """None where the paper does not say which."""
    improvement: float


LENIENCE = (
    Lenience(1, 1.0, 0.62, 0.015, None, 2.5),
    Lenience(1, 0.5, 0.71, 0.015, None, 3.1),
    Lenience(1, 0.3, 0.76, 0.015, None, 3.6),
    Lenience(1, 0.1, 0.84, 0.015, None, 5.0),
    Lenience(0, 1.0, 0.75, 0.015, 8, 3.3),
    Lenience(0, 0.5, 0.75, 0.015, 8, 3.3),
    Lenience(0, 0.3, 0.80, 0.015, 8, 3.9),
    Lenience(0, 0.1, 0.87, 0.015, 8, 4.9),
)


@dataclass(frozen=True)
class NgramSpeedup:
    """A row of the n-gram chapter's speedup analysis: 4 drafts, a 5-row pass at 1.3 times the cost of one row."""

    alpha: float
    accepted: float
    speedup: float
    speedup_with_overhead: float


NGRAM_DRAFTS = 4
NGRAM_OVERHEAD = 1.3
NGRAM = (
    NgramSpeedup(0.5, 0.94, 1.94, 1.5),
    NgramSpeedup(0.7, 2.05, 3.05, 2.3),
    NgramSpeedup(0.9, 3.28, 4.28, 3.3),
)
