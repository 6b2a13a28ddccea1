"""Passes of a backend with an encoder over hand-made block tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headstart.passes.backend import EncoderBackend
from headstart.passes.batch import EncoderInput, KVStorage
from passes import BLOCK_SIZE, Rows, make_pass


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 256), k=count)


@dataclass(frozen=True)
class Memory:
    """An encoder memory."""

    blocks: list[int]
    length: int


class Bench:
    """A storage in which memories and texts lie in no order."""

    def __init__(self, backend: EncoderBackend, blocks: int = 160, block_size: int = BLOCK_SIZE) -> None:
        self.backend = backend
        self.storage: KVStorage = backend.allocate_cache(blocks, block_size)
        self.free = list(range(blocks))
        random.Random(1).shuffle(self.free)

    def take(self, positions: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-positions // self.storage.block_size))]

    def encode(self, source: Sequence[int] | np.ndarray) -> Memory:
        audio = isinstance(source, np.ndarray)
        given = EncoderInput.of_features(source) if audio else EncoderInput(tuple(source))
        blocks = self.take(given.positions)
        self.backend.encode(given, self.storage, blocks)
        return Memory(blocks, given.positions)

    def run(self, parts: Sequence[Rows], memories: Sequence[Memory], **settings: object) -> Tensor:
        """Logits of all rows."""
        tables = np.zeros((len(memories), max(len(memory.blocks) for memory in memories)), dtype=np.int32)
        for row, memory in zip(tables, memories, strict=True):
            row[: len(memory.blocks)] = memory.blocks
        lengths = np.array([memory.length for memory in memories], dtype=np.int32)
        batch = make_pass(parts, memory_lengths=lengths, memory_tables=tables, **settings)
        return self.backend.forward(batch, self.storage).logits
