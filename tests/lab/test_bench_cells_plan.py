"""The time of a sitting of cells, simulated: what is measured how often, and that all of it is used and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from headstart_lab.bench.cells import Cell, Grid, Stand, Turn
from headstart_lab.bench.cells_plan import Amount, CellPace, Costs, Schedule, TimeIsUp, spreads_of
from headstart_lab.workbench import PLAIN

GRID = Grid(["bf16", "int4"], ["short", "8192"], [1, 4, 16, 64], [0.0, 1.0])
GROUPS = {"short": ["chat", "rag", "math"], "8192": ["long"]}
READ = {"chat": 50, "rag": 250, "math": 80, "long": 8000}
CELLS = [
    Cell(stand, *each)
    for precision in GRID.precisions
    for stand in GRID.stands(precision)
    for each in product(GRID.temperatures, GROUPS[stand.input])
]


class Simulated:
    """A machine on which time passes as it says.

    Args:
        reading, saying: how much slower than the pace that the plan knows.
        loading, opening: seconds.
        gains: by which power of the users throughput really grows.
        noise: of each turn.
    """

    loaded = "bf16"

    def __init__(self, reading=1.0, saying=1.0, loading=5.0, opening=3.0, gains=0.5, noise=0.0, rooms=64) -> None:
        self.now, self.seconds = 0.0, 0.0
        self.reading, self.saying, self.loading, self.opening = reading, saying, loading, opening
        self.gains, self.noise, self.rooms = gains, noise, rooms
        self.random = np.random.default_rng(0)
        self.turns: list[Turn] = []
        self.rounds: list[int] = []
        self.counts: list[int] = []
        self.opened: list[Stand] = []
        self.latest = float("inf")

    def clock(self) -> float:
        return self.now

    def load(self, precision: str) -> bool:
        self.now += self.loading
        self.loaded = precision
        return True

    def open(self, stand: Stand) -> bool:
        self.now += self.opening
        self.opened.append(stand)
        return stand.users <= self.rooms

    def measure(self, cell: Cell, repeat: int) -> Sequence[Turn]:
        assert (self.opened[-1], self.loaded) == (cell.stand, cell.stand.precision)
        users, amount, turns = cell.stand.users, amount_of(cell), []
        for name, speed in ((PLAIN, 1.0), ("auto", 1.3)):
            slow = 1 + self.noise * self.random.uniform(-1, 1)
            decoding = slow * self.saying * amount.said / 2 * 0.01 / users**self.gains / speed
            seconds = slow * self.reading * amount.read / 2 * 0.002 + decoding
            self.now += seconds
            if self.now > self.latest:
                self.now = self.latest
                raise TimeIsUp
            turns.append(Turn(cell, name, repeat, 10, seconds, decoding * users, 5, "", True))
        self.turns += turns
        self.counts[-1] += 1
        return turns

    def run(self, seconds: float, repeats: int = 9, done: dict[Cell, set[int]] | None = None) -> Schedule:
        self.seconds, self.latest = seconds, 1.1 * seconds
        costs = Costs(CellPace(6.0, 0.002, 0.01), {cell: amount_of(cell) for cell in CELLS})
        costs.loaded("bf16", self.loading)
        plan = Schedule(costs, done or {cell: set() for cell in CELLS}, self.turns, repeats, lambda: seconds - self.now)

        def begin(cells: int) -> None:
            self.rounds.append(cells)
            self.counts.append(0)

        plan.run(self, self.clock, begin)
        return plan


def amount_of(cell: Cell) -> Amount:
    requests = max(4, cell.stand.users)
    return Amount(2 * requests * READ[cell.group], 2 * requests * max(32, min(128, 1024 // requests)))


MACHINES = {
    "as expected": {},
    "reads slowly": {"reading": 3.0},
    "reads fast": {"reading": 0.3},
    "decodes slowly": {"saying": 3.0},
    "decodes fast": {"saying": 0.4},
    "gains nothing from users": {"gains": 0.1},
    "gains much": {"gains": 0.9},
    "opens and loads slowly": {"loading": 20.0, "opening": 12.0},
    "noisy": {"noise": 0.5, "saying": 1.5},
}


@pytest.mark.parametrize("minutes", [6, 13, 60, 200])
@pytest.mark.parametrize("machine", MACHINES)
def test_all_of_the_time_is_used_and_no_more(machine: str, minutes: int) -> None:
    simulated = Simulated(**MACHINES[machine])
    plan = simulated.run(60 * minutes)
    assert simulated.now <= 1.1 * simulated.seconds
    seen = [len(measured) for measured in plan.done.values() if measured]
    assert min(seen) == 9 or simulated.now >= 0.85 * simulated.seconds
    # No more is ever measured than was announced.
    assert all(count <= told for count, told in zip(simulated.counts, simulated.rounds, strict=True))


def test_all_cells_are_seen_before_any_is_seen_twice() -> None:
    simulated = Simulated()
    plan = simulated.run(3600)
    seen = Counter(turn.cell for turn in simulated.turns if turn.contender == PLAIN)
    short = {cell for cell in CELLS if cell.stand.input == "short"}
    assert short <= set(seen)
    firsts = [turn.cell for turn in simulated.turns if turn.contender == PLAIN][: len(seen)]
    assert len(set(firsts)) == len(firsts)
    # The cheapest first: as many requests as of one user, at a higher pace.
    assert firsts[0].stand == Stand("bf16", "short", 4)
    assert {cell: len(measured) for cell, measured in plan.done.items() if measured} == dict(seen)


def test_what_is_left_goes_to_whatever_was_measured_least_and_differs_most() -> None:
    costs = Costs(CellPace(0.0, 0.0, 0.01), {cell: Amount(0, 100) for cell in CELLS})
    cells = [cell for cell in CELLS if cell.stand == Stand("bf16", "short", 1)]
    turns = [
        Turn(cell, name, repeat, 10, seconds, seconds, 5, "", True)
        for place, cell in enumerate(cells)
        for repeat in (0, 1)
        for name, seconds in ((PLAIN, 1.0), ("auto", 1.0 + place * repeat))
    ]
    spreads = spreads_of(turns)
    assert [spreads[cell] for cell in cells] == pytest.approx([1, 2, 3, 4, 5, 6])
    done = {cell: {0, 1} for cell in cells}
    assert list(Schedule(costs, done, turns, 9, lambda: 2.5).next_round("bf16")) == [cells[5], cells[4]]
    done[cells[2]] = {0}
    assert list(Schedule(costs, done, turns, 9, lambda: 2.5).next_round("bf16")) == [cells[2], cells[5]]
    assert Schedule(costs, done, turns, 9, lambda: 13.5).next_round("bf16") == dict.fromkeys(cells, 2)
    assert Schedule(costs, done, turns, 2, lambda: 13.5).next_round("bf16") == {cells[2]: 1}
    assert Schedule(costs, done, turns, 9, lambda: 0.5).next_round("bf16") == {}


def test_without_a_limit_everything_is_measured_in_one_round() -> None:
    simulated = Simulated(rooms=16)
    plan = simulated.run(float("inf"), repeats=2)
    assert simulated.rounds == [2 * len(CELLS)]
    assert set(plan.done) == {cell for cell in CELLS if cell.stand.users <= 16}
    assert all(measured == {0, 1} for measured in plan.done.values())


def test_kinds_of_cost_are_corrected_by_themselves() -> None:
    first, long = CELLS[0], Cell(Stand("int4", "8192", 1), 0.0, "long")
    costs = Costs(CellPace(1.0, 0.001, 0.01), {first: Amount(100, 100), long: Amount(8000, 100)})
    assert costs.repeat(long) == pytest.approx(9.0)
    assert (costs.opening(first.stand), costs.loading("int4")) == (1.0, 0.0)
    # Reading took twice as long, decoding half.
    costs.measured([Turn(first, PLAIN, 0, 100, 0.7, 0.5, 100, "", True)], 0.7)
    costs.opened(first.stand, 4.0)
    costs.loaded("bf16", 7.0)
    assert costs.repeat(first) == pytest.approx(0.7)
    assert costs.repeat(long) == pytest.approx(16.5)
    assert (costs.opening(long.stand), costs.loading("int4")) == (4.0, 7.0)
