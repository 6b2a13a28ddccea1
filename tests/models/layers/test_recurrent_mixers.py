"""Recurrences in both of their forms: scanned in pieces they give what they give row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from headstart.models.layers.delta import run_delta
from headstart.models.layers.mamba import run_mamba
from headstart.models.layers.mamba2 import run_mamba2
from headstart.models.layers.recurrence import PIECE, Pieces, Recur, Scan, Step, decays_between
from headstart.models.state_config import DeltaConfig, Mamba2Config, MambaConfig

DELTA = DeltaConfig(key_heads=2, value_heads=4, key_dim=12, value_dim=10, length=4)
MAMBA2 = Mamba2Config(heads=6, head_dim=8, state_size=12, groups=2, length=4, norm="none")
MAMBA = MambaConfig(inner=24, state_size=6, step_rank=5, length=4)
STATES = {"delta": (4, 12, 10), "delta-tiled": (4, 12, 10), "mamba2": (6, 8, 12), "mamba2-bounded": (6, 8, 12)}
KINDS = [*STATES, "mamba"]
LENGTHS = (1, 2, 9, 31, 32, 33, 64, 70, 200)
Run = Callable[[Tensor, Recur], Tensor]


@dataclass
class Parts:
    """Of any recurrence. What goes in is projected already."""

    drawn: torch.Generator
    inner: int
    heads: int
    most_decay: float
    num_rates: int = 0
    """Columns of what goes in that are the delta rule's rates, the last ones."""

    def __post_init__(self) -> None:
        self.kernel, self.kernel_bias = torch.ones(1, 1), None
        self.step_bias = torch.randn(self.heads, generator=self.drawn)
        self.log_decay = torch.linspace(-4, self.most_decay, self.heads)
        self.norm, self.skip = torch.ones(DELTA.value_dim), torch.ones(self.heads)
        self.decay = -torch.linspace(0.1, 4, self.inner * MAMBA.state_size).view(self.inner, -1)
        self.norms = None

    def input(self, x: Tensor) -> Tensor:
        return x[:, : x.shape[1] - self.num_rates]

    def rates(self, x: Tensor) -> Tensor:
        return x[:, -self.num_rates :]

    def output(self, x: Tensor) -> Tensor:
        return x

    def selection(self, x: Tensor) -> Tensor:
        return torch.cat((x[:, :5], x[:, 5:11], x[:, 11:17]), dim=-1)

    def step(self, x: Tensor) -> Tensor:
        return x.repeat(1, 5)[:, :24]


def looks_nowhere(rows: Tensor) -> Tensor:
    return rows[:, None]


def made(kind: str, rows: int, seed: int, most_decay: float) -> tuple[Run, Tensor, tuple[int, ...]]:
    """What runs a recurrence, what rows bring, and the shape of a state."""
    drawn = torch.Generator().manual_seed(seed)
    if kind == "mamba":
        parts = Parts(drawn, MAMBA.inner, MAMBA.inner, most_decay)
        # The form follows the device; both are to be compared on this one.
        x = torch.randn(rows, 2 * MAMBA.inner, generator=drawn).as_subclass(Elsewhere)
        return lambda x, recur: run_mamba(MAMBA, parts, x, looks_nowhere, recur), x, (24, 6)
    if kind.startswith("delta"):
        config = replace(DELTA, tiled=kind == "delta-tiled")
        parts = Parts(drawn, config.values, config.value_heads, most_decay, 2 * config.value_heads)
        x = torch.randn(rows, config.convolved + config.values + 2 * config.value_heads, generator=drawn)
        return lambda x, recur: run_delta(config, parts, x, looks_nowhere, recur), x, STATES[kind]
    mamba2 = replace(MAMBA2, least_step=0.2, most_step=0.9) if kind == "mamba2-bounded" else MAMBA2
    parts = Parts(drawn, mamba2.inner, mamba2.heads, most_decay)
    x = torch.randn(rows, mamba2.inner + mamba2.convolved + mamba2.heads, generator=drawn)
    return lambda x, recur: run_mamba2(mamba2, parts, x, looks_nowhere, recur), x, STATES[kind]


class Elsewhere(Tensor):
    """As if on an accelerator."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


class Chain:
    """Rows of one text, one after the other or in pieces that begin after ``first`` rows."""

    def __init__(self, state: Tensor, first: int | None) -> None:
        self.state, self.first = state[None], first

    def __call__(self, step: Step, scan: Scan | None) -> Tensor:
        first = self.rows if self.first is None else min(self.first, self.rows)
        given = []
        for row in range(first):
            self.state, out = step(self.state, slice(row, row + 1))
            given.append(out)
        if first < self.rows:
            assert scan is not None
            count = -(-(self.rows - first) // PIECE)
            places = torch.arange(first, first + count * PIECE)
            real = (places < self.rows).view(count, PIECE, 1)
            advance = scan(Pieces(places.clamp(max=self.rows - 1), None if real.all() else real))
            for piece in range(count):
                self.state, out = advance(self.state, slice(piece, piece + 1))
                given.append(out[0][real[piece, :, 0]])
        return torch.cat(given)

    def run(self, run: Run, x: Tensor) -> tuple[Tensor, Tensor]:
        self.rows = len(x)
        return run(x, self), self.state


@pytest.mark.parametrize("most_decay", [0.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_scanned_is_row_by_row(kind: str, most_decay: float) -> None:
    """Within float32 rounding, also where a state is gone after a row."""
    for rows in LENGTHS:
        for first in (0, 5):
            run, x, shape = made(kind, rows, rows, most_decay)
            state = torch.randn(shape, generator=torch.Generator().manual_seed(rows))
            expected, last = Chain(state, None).run(run, x)
            found, end = Chain(state, first).run(run, x)
            assert expected.isfinite().all()
            assert (found - expected).abs().max() <= 2e-6 * expected.abs().max()
            assert (end - last).abs().max() <= 2e-6 * last.abs().max()


def test_equal_keys_that_are_taken_over_whole() -> None:
    """The system of a piece is worst where each row undoes what all before it did."""
    run, x, shape = made("delta", 3 * PIECE, 0, -8.0)
    x[:, : 2 * DELTA.keys] = x[0, : 2 * DELTA.keys]
    x[:, -2 * DELTA.value_heads :] = 20.0
    state = torch.ones(shape)
    expected, last = Chain(state, None).run(run, x)
    found, end = Chain(state, 0).run(run, x)
    assert (found - expected).abs().max() <= 4e-6 * expected.abs().max()
    assert (end - last).abs().max() <= 4e-6 * last.abs().max()


def test_decays_between_rows() -> None:
    decay = -torch.rand(2, PIECE, dtype=torch.float64)
    decayed, between = decays_between(decay)
    for later, earlier in ((0, 0), (5, 2), (31, 0), (2, 5)):
        expected = torch.exp(decay[1, earlier + 1 : later + 1].sum()) if later >= earlier else torch.zeros(())
        assert torch.allclose(between[1, later, earlier], expected.double())
    assert torch.allclose(decayed[0, 7], decay[0, :8].sum().exp())
