"""What attention to compressed keys looks like (DeepSeek-V4, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compression:
    """How a layer's rows see what stands before their window: keys that are made of ``ratio`` tokens each."""

    ratio: int
    chosen: int | None = None
    """Rows see so many of them, which an indexer chooses, and each is made of the tokens before its own as well. None:
    they see all, and each is made of its own tokens alone."""

    @property
    def reach(self) -> int:
        """Tokens that a key is made of."""
        return self.ratio if self.chosen is None else 2 * self.ratio


@dataclass(frozen=True)
class CompressedConfig:
    """Attention with one head of keys, which are values, too. The last dimensions of heads turn, in neighbouring pairs,
    and those of what heads see turn back."""

    q_rank: int
    """Queries come from a state of this size."""
    groups: int
    """What heads see is lowered group by group ..."""
    output_rank: int
    """... to so many numbers each."""
    index_heads: int = 0
    """Of the indexer; 0: there is none."""
    index_dim: int = 0

    def made(self, compression: Compression | None, head_dim: int) -> tuple[int, ...]:
        """Sizes of what a row gives to compressed keys: to those of heads, and to the indexer's."""
        if compression is None:
            return ()
        return (head_dim,) if compression.chosen is None else (2 * head_dim, 2 * self.index_dim)

    def kept(self, compression: Compression | None, head_dim: int) -> tuple[int, int, int]:
        """What a token keeps: its key, what it gives, as values and as weights, and, where it is the last one of its
        window, the compressed keys. Where each of the latter two begins, a multiple of the cache's blocks; and all."""
        given = head_dim + 2 * sum(self.made(compression, head_dim))
        if compression is None:
            return head_dim, given, given
        first = -(-given // 32) * 32
        return head_dim, first, first + head_dim + (0 if compression.chosen is None else self.index_dim)
