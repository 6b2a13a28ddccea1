"""What every verification rule reads and returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torch import Tensor


class NodeLaws(Protocol):
    """The target at the nodes of one draft tree, lazily: a walk visits one path. Node ROOT (-1) is the root.

    Every law is the target's after the request's transforms, along the path's own history.
    """

    @property
    def greedy(self) -> bool:
        """Every law is one-hot: the request's temperature is 0."""
        ...

    def probs(self, node: int) -> Tensor:
        """The law of the token after ``node``, float64 [vocab], summing to 1."""
        ...

    def sample(self, node: int) -> int:
        """The token after ``node``: the argmax if greedy, else drawn with the noise of the token's own position."""
        ...

    def peak_ratio(self, node: int, token: int) -> float:
        """p(token) / max p after ``node``, before temperature and truncation (for greedy lenience)."""
        ...


@dataclass(frozen=True)
class Verdict:
    """What one round says: the tokens of ``path``, then ``token``."""

    path: tuple[int, ...]
    """Accepted nodes, from the first level down."""
    token: int
    """The correction, or the bonus after a fully accepted path."""


class VerifyRule(Enum):
    """How trees of sampled draws are verified; all are exact. Point masses and greedy requests always walk."""

    AUTO = "auto"
    """What accepts most: today BLOCK."""
    REJECTION = "rejection"
    """Algorithm 1 of the paper where draws follow one another singly, the iterative rule where several share a node."""
    BLOCK = "block"
    """Block verification where draws follow one another singly, the iterative rule where several share a node."""
    COUPLED = "coupled"
    """The target's own draw decides, keyed by seed and position: output does not depend on the drafter. A tree of
    independent draws falls back to the same walk, which accepts less than the other rules do."""
