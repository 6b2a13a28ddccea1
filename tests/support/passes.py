"""Passes from hand-made block tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headstart.passes.batch import PassBatch

BLOCK_SIZE = 4


@dataclass
class Rows:
    """What one sequence adds to a pass: a chunk (``parents`` None) or a root with its tree."""

    tokens: Sequence[int]
    cached: int
    table: Sequence[int]
    parents: Sequence[int] | None = None
    """Row of this sequence before each row, -1 for the last cached token."""


def make_pass(parts: Sequence[Rows], logit_rows: Sequence[int] | None = None, **settings: object) -> PassBatch:
    tokens: list[int] = []
    parents: list[int] = []
    starts = [0]
    for part in parts:
        start = starts[-1]
        local = list(part.parents) if part.parents is not None else list(range(-1, len(part.tokens) - 1))
        tokens += part.tokens
        parents += [-1 if parent < 0 else start + parent for parent in local]
        starts.append(start + len(part.tokens))
    width = max(len(part.table) for part in parts)
    tables = np.zeros((len(parts), width), dtype=np.int32)
    for i, part in enumerate(parts):
        tables[i, : len(part.table)] = part.table
    rows = range(len(tokens)) if logit_rows is None else logit_rows

    def ints(values: Sequence[int]) -> np.ndarray:
        return np.asarray(values, dtype=np.int32)

    return PassBatch(
        tokens=ints(tokens),
        parents=ints(parents),
        row_starts=ints(starts),
        cached_lengths=ints([part.cached for part in parts]),
        block_tables=tables,
        logit_rows=ints(list(rows)),
        **settings,  # type: ignore[arg-type]
    )


def path_to(parents: Sequence[int], row: int) -> list[int]:
    """Rows from the root down to ``row``, itself included."""
    path = [row]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def slot(table: Sequence[int], logical: int) -> int:
    """Physical slot of a logical one."""
    return table[logical // BLOCK_SIZE] * BLOCK_SIZE + logical % BLOCK_SIZE


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """For vocabularies of 101 tokens or more."""
    return random.Random(seed).choices(range(3, 101), k=count)


def scattered(num_tables: int, blocks: int, seed: int = 0) -> list[list[int]]:
    """Block tables that share no block and are in no order."""
    ids = list(range(num_tables * blocks))
    random.Random(seed).shuffle(ids)
    return [ids[i * blocks : (i + 1) * blocks] for i in range(num_tables)]


def usual_distance(found: Tensor, expected: Tensor) -> float:
    """Of a row, the median over them [row, any]. A norm over all rows is decided by the few in which a recurrence or
    other experts make much of a rounding, and these say nothing of what was rounded."""
    return float((found - expected).norm(dim=1).median())
