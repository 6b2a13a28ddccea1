"""What follows from a pass's tables, and the states that it shows."""

from __future__ import annotations

import numpy as np
import torch

from headstart.passes.batch import FINAL_TAP, NO_STATES, PassBatch, TapStates, path_lengths


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_positions_follow_from_parents() -> None:
    """A chunk behind five cached tokens, and a tree whose second branch begins at the root."""
    batch = PassBatch(
        tokens=np.zeros(7, np.int32),
        parents=ints(-1, 0, -1, 2, 3, 2, 5),
        row_starts=ints(0, 2, 7),
        cached_lengths=ints(5, 40),
        block_tables=np.zeros((2, 1), np.int32),
        logit_rows=ints(),
    )
    assert batch.positions.tolist() == [5, 6, 40, 41, 42, 41, 42]
    assert batch.positions.dtype == np.int32


def test_a_path_ends_with_its_row() -> None:
    assert path_lengths([-1, 0, 1, 0, -1, 4]) == [1, 2, 3, 2, 1, 2]
    assert path_lengths([]) == []


def test_states_are_found_by_tap_and_row() -> None:
    states = {tap: torch.full((4, 3), float(tap)) + torch.arange(4.0)[:, None] / 8 for tap in (2, FINAL_TAP, 7)}
    shown = TapStates.of({tap: rows.bfloat16() for tap, rows in states.items()})
    for tap, rows in states.items():
        assert np.array_equal(shown[tap], rows.numpy())
    assert np.array_equal(shown.rows(1, 3)[7], states[7][1:3].numpy())
    assert shown.at(shown.taps) is shown.states
    assert np.array_equal(shown.at((7, 2)), torch.stack([states[7], states[2]]).numpy())


def test_a_pass_without_taps_shows_none() -> None:
    assert TapStates.of({}) is NO_STATES
    assert NO_STATES.rows(0, 5) is NO_STATES
