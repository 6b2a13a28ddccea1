"""What every verification rule speaks of: the target's laws at a tree's nodes, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torch import Tensor


class VerifyRule(Enum):
    """How sampled trees are verified. Every choice is exact; they differ in what they accept."""

    AUTO = "auto"
    """Point masses are walked, sampled chains block-verified, other sampled trees verified draw by draw."""
    REJECTION = "rejection"
    """Algorithm 1 of the founding paper on chains, its iterative form on trees."""
    BLOCK = "block"
    """Block verification (Sun et al. 2024) on chains."""
    COUPLED = "coupled"
    """The target samples with noise keyed by position; the drafter shares that noise if it can."""


class NodeLaws(Protocol):
    """The target at a tree's nodes, computed when asked for. Node -1 is the root."""

    greedy: bool
    """Every law is one-hot at the argmax."""

    def probs(self, node: int) -> Tensor:
        """float64 [vocab]: the law of the token after ``node``, after all transforms."""
        ...

    def sample(self, node: int) -> int:
        """The token after ``node``, drawn with the noise of its own position (greedy: the argmax)."""
        ...


@dataclass(frozen=True)
class Verdict:
    """What a rule decided for one tree."""

    path: tuple[int, ...]
    """Accepted nodes, from the first level down."""
    token: int
    """The target's own token after them: correction or bonus."""
