"""What heads share with their target."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TargetTables:
    """The target's embedding and output head, which most heads use instead of their own."""

    embedding: Tensor
    """[vocab, hidden]."""
    head: Tensor
    """[vocab, hidden]; the embedding itself where it is tied."""
