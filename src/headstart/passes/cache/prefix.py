"""Which cached block holds which tokens after which prefix: a chain of SHA-256 digests over full blocks.

The digest of a block covers the model, the salt, everything before the block, and its own tokens, so that only
requests of one salt ever meet. A digest only finds a block; what it found is compared, so that a collision costs a
miss and never gives a wrong block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

Hash = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """32 bytes."""
    return hashlib.sha256(data).digest()


@dataclass(frozen=True, eq=False)
class Link:
    """One full block of a chain. Two links with equal contents are still two: identity stands for the whole prefix."""

    parent: Link | None
    """The block before it; None: the chain's root."""
    salt: str
    tokens: tuple[int, ...] = ()
    block: int = -1
    """-1: the root of a chain, which has no block."""
    digest: bytes = field(default=b"", repr=False)
    depth: int = 0
    """Blocks before it."""

    @property
    def is_root(self) -> bool:
        return self.parent is None


class PrefixIndex:
    """Finds blocks by what they hold. Knows nothing of references: the allocator says when a block is reused.

    Args:
        model: a name that no other model shares.
        hash_of: bytes -> digest; tests force collisions with a short one.
    """

    def __init__(self, model: str = "", hash_of: Hash = sha256) -> None:
        self.model = model
        self._hash_of = hash_of
        self._by_digest: dict[bytes, Link] = {}
        self._by_block: dict[int, Link] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def root(self, salt: str) -> Link:
        """Where the chains of a salt start."""
        return Link(None, salt, digest=self._hash_of(b"\0".join([self.model.encode(), salt.encode()])))

    def find(self, parent: Link, tokens: Sequence[int]) -> Link | None:
        """The known block with these tokens after ``parent``."""
        wanted = tuple(tokens)
        found = self._by_digest.get(self.digest(parent, wanted))
        return found if found is not None and _same(found, parent, wanted) else None

    def insert(self, parent: Link, tokens: Sequence[int], block: int) -> tuple[Link, int | None]:
        """Learn what a full block holds.

        Returns:
            The chain's new end: this block, or the one already known for the same tokens. And the block that is
            forgotten for it (another chain's with the same digest), if any.
        """
        wanted = tuple(tokens)
        digest = self.digest(parent, wanted)
        known = self._by_digest.get(digest)
        if known is not None and _same(known, parent, wanted):
            return known, None
        if known is not None:
            self.forget(known.block)
        link = Link(parent, parent.salt, wanted, block, digest, 0 if parent.is_root else parent.depth + 1)
        self._by_digest[digest] = self._by_block[block] = link
        return link, None if known is None else known.block

    def forget(self, block: int) -> None:
        """The block will hold something else. Unknown blocks are ignored."""
        link = self._by_block.pop(block, None)
        if link is not None:
            del self._by_digest[link.digest]

    def links(self) -> Iterator[Link]:
        """Every known block."""
        return iter(self._by_block.values())

    def digest(self, parent: Link, tokens: Sequence[int]) -> bytes:
        """What a full block of these tokens after ``parent`` is found by."""
        return self._hash_of(parent.digest + np.asarray(tokens, dtype="<i4").tobytes())


def _same(link: Link, parent: Link, tokens: tuple[int, ...]) -> bool:
    # Roots are made anew for each sequence; the salt is all they hold.
    rooted = link.parent is not None and link.parent.is_root and parent.is_root and link.salt == parent.salt
    return link.tokens == tokens and (rooted or link.parent is parent)
