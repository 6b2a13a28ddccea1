"""What heads share with their target."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from torch import Tensor

from headstart.models.stored import Matrix


def _tensor(matrix: Matrix) -> Tensor:
    return matrix.tensor()


class TargetTables:
    """The target's embedding and output head, which most heads use instead of their own.

    Args:
        embedding: [vocab, hidden], or what reads it from a file.
        head: likewise; the embedding itself where it is tied.
        read: makes a tensor of what is in a file.
    """

    def __init__(
        self, embedding: Tensor | Matrix, head: Tensor | Matrix, read: Callable[[Matrix], Tensor] = _tensor
    ) -> None:
        self.stored_embedding, self.stored_head = embedding, head
        self._read = read

    @cached_property
    def embedding(self) -> Tensor:
        """[vocab, hidden], kept once it has been read."""
        stored = self.stored_embedding
        return stored if isinstance(stored, Tensor) else self._read(stored)

    def with_others(self, embedding: Matrix | None, head: Matrix | None) -> TargetTables:
        """The same with tables of a head's own in place of the target's."""
        if embedding is None and head is None:
            return self
        return TargetTables(
            self.stored_embedding if embedding is None else embedding,
            self.stored_head if head is None else head,
            self._read,
        )

    @cached_property
    def head(self) -> Tensor:
        """Likewise; the embedding itself where it is tied."""
        stored = self.stored_head
        if stored is self.stored_embedding:
            return self.embedding
        return stored if isinstance(stored, Tensor) else self._read(stored)
