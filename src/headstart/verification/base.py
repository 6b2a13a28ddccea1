"""What every verification rule reads and returns."""

from __future__ import annotations

from dataclasses import dataclass
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
