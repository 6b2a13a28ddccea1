"""The order in which states are passed on: whatever a pass holds, each state follows from that before it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from headstart.backends.torch import levels
from headstart.backends.torch.levels import SHORTEST_PIECE, order_of
from headstart.backends.torch.states import StateLayout
from headstart.models.layers.recurrence import PIECE, Pieces, ScanStep
from headstart.passes.batch import PassBatch
from headstart.passes.cache.states import NO_STATE
from headstart.passes.runner import BLOCK_SIZE
from passes import Rows, make_pass

CPU = torch.device("cpu")
SLOTS = 64


def batch_of(parts: list[Rows], before: list[int], after: list[int]) -> PassBatch:
    states = {"states_before": np.array(before, np.int32), "states_after": np.array(after, np.int32)}
    return make_pass(parts, **states)


def chain(rows: int, cached: int = 0) -> Rows:
    return Rows([7] * rows, cached, [0])


class Toy:
    """A state is a number; a row halves it and adds its own number. Every step is exact."""

    def __init__(self, rows: int) -> None:
        self.own = torch.arange(1, rows + 1, dtype=torch.float64)[:, None]
        self.pieces = 0

    def step(self, states: Tensor, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        after = (states * 3 + self.own[rows]) % 1009
        return after, after * 2

    def scan(self, pieces: Pieces) -> ScanStep:
        own, real = pieces.cut(self.own), pieces.real
        if real is None:
            real = torch.ones(len(own), PIECE, 1, dtype=torch.bool)

        def advance(states: Tensor, these: slice) -> tuple[Tensor, Tensor]:
            given = torch.full((len(states), PIECE, 1), torch.nan, dtype=torch.float64)
            for row in range(PIECE):
                after = (states * 3 + own[these, row]) % 1009
                states = torch.where(real[these, row], after, states)
                given[:, row] = torch.where(real[these, row], after * 2, torch.nan)
            self.pieces += len(states)
            return states, given

        return advance


def check(batch: PassBatch) -> int:
    """What is given and kept is what a walk over parents finds; the number of pieces."""
    toy = Toy(batch.num_rows)
    store = torch.arange(100.0, 100.0 + SLOTS + 1, dtype=torch.float64)[:, None]
    store[SLOTS] = 0
    expected, states = store.clone(), []
    sequence = np.repeat(np.arange(batch.num_sequences), np.diff(batch.row_starts))
    assert batch.states_before is not None
    assert batch.states_after is not None
    for row, parent in enumerate(batch.parents):
        before = batch.states_before[sequence[row]]
        state = states[parent] if parent >= 0 else float(store[before if before >= 0 else SLOTS])
        states.append((state * 3 + row + 1) % 1009)
        if batch.states_after[row] >= 0:
            expected[batch.states_after[row]] = states[-1]
    layout = StateLayout(batch, SLOTS, CPU)
    for scan in (toy.scan, None):
        left = store.clone()
        given = layout.recur(toy.step, scan, left)
        assert given[:, 0].tolist() == [2 * state for state in states]
        assert torch.equal(left, expected)
    return toy.pieces


def test_pieces_are_the_blocks_of_the_cache() -> None:
    """So that prompts are cut, and prefixes taken over, where pieces end."""
    assert BLOCK_SIZE % PIECE == 0


@pytest.mark.parametrize(
    ("rows", "cached", "lengths"),
    [
        (PIECE, 0, [PIECE]),
        (3 * PIECE, 0, [PIECE] * 3),
        (PIECE + SHORTEST_PIECE, 0, [PIECE, SHORTEST_PIECE]),
        (PIECE + SHORTEST_PIECE - 1, 0, [PIECE]),
        (2 * PIECE, 10, [PIECE - 10, PIECE, 10]),
        (2 * PIECE, PIECE - 3, [PIECE, PIECE - 3]),
        (SHORTEST_PIECE - 1, PIECE, []),
    ],
)
def test_a_chain_is_cut_where_blocks_end(rows: int, cached: int, lengths: list[int]) -> None:
    batch = batch_of([chain(rows, cached)], [3 if cached else NO_STATE], [NO_STATE] * (rows - 1) + [4])
    portions = order_of(batch, np.asarray(batch.states_after), CPU, scans=True).portions
    assert len(portions) == bool(lengths)
    for pieces in portions:
        real = torch.ones(len(lengths), PIECE) if pieces.real is None else pieces.real[..., 0]
        assert real.sum(-1).tolist() == lengths
    assert check(batch) == len(lengths)


def test_a_state_that_is_kept_ends_a_piece() -> None:
    after = [NO_STATE] * 64
    after[19], after[63] = 7, 8
    batch = batch_of([chain(64)], [NO_STATE], after)
    assert check(batch) == 3
    assert check(batch_of([chain(20)], [NO_STATE], list(range(20)))) == 0


def test_rows_that_branch_are_computed_one_by_one() -> None:
    parents = [*range(-1, 38), 19, 39, 40]
    batch = batch_of([Rows([5] * 42, 0, [0], parents)], [NO_STATE], [NO_STATE] * 42)
    assert check(batch) == 2  # 20 rows up to the branch, 12 to the block's end
    assert check(batch_of([Rows([5] * 12, 0, [0], [-1] * 12)], [NO_STATE], [NO_STATE] * 12)) == 0


@pytest.mark.parametrize("seed", range(30))
def test_any_pass(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared in portions, too."""
    draw = random.Random(seed)
    monkeypatch.setattr(levels, "PORTION", draw.choice([1, 3, 64]))
    parts, before, after = [], [], []
    free = draw.sample(range(SLOTS), SLOTS)
    for _ in range(draw.randint(1, 4)):
        rows, cached = draw.choice([1, 3, 31, 64, 100, 130]), draw.choice([0, 1, 31, 32, 40])
        parents = list(range(-1, rows - 1))
        for row in range(1, rows):
            if draw.random() < draw.choice([0, 0.05]):
                parents[row] = draw.randrange(-1, row)
        parts.append(Rows([5] * rows, cached, [0], parents))
        before.append(free.pop() if cached else NO_STATE)
        after += [free.pop() if len(free) > 4 and draw.random() < 0.05 else NO_STATE for _ in range(rows)]
    check(batch_of(parts, before, after))
