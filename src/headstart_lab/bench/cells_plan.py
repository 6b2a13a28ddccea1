"""Which cells are measured next: round after round over the stands, for as long as there is time.

What loading, opening, reading prompts and decoding take is estimated by plain decoding's pace and corrected by what was
measured, each kind by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from headstart_lab.bench.cells import Cell, Stand, Turn
from headstart_lab.workbench import PLAIN

_GAINS = 0.5
"""By which power of the users throughput is taken to grow, until it was measured."""


@dataclass(frozen=True)
class CellPace:
    """Seconds that one text takes, decoded plainly."""

    opening: float
    """All contenders' engines, before."""
    read: float
    """A prompt's token."""
    said: float
    """An answer's token."""


@dataclass(frozen=True)
class Amount:
    """Tokens of one repeat of a cell, all contenders together."""

    read: int
    said: int
    """At most: texts may end before."""


class Costs:
    """Seconds that parts of a sitting are expected to take.

    Args:
        pace: of this machine.
        amounts: of all cells.
    """

    def __init__(self, pace: CellPace, amounts: Mapping[Cell, Amount]) -> None:
        self._pace, self._amounts = pace, amounts
        self._loading: dict[str, float] = {}
        self._opening: dict[Stand, float] = {}
        self._repeats: dict[Cell, list[float]] = {}
        self._sums: dict[object, list[list[float]]] = {}
        """What measured cells have in common -> (estimated, taken) of reading and of decoding."""

    def loading(self, precision: str) -> float:
        """Of a model; as others did, until it was loaded."""
        return self._loading.get(precision, fmean(self._loading.values() or [0.0]))

    def opening(self, stand: Stand) -> float:
        """Of engines that are made and warmed up; likewise."""
        return self._opening.get(stand, fmean(self._opening.values() or [self._pace.opening]))

    def repeat(self, cell: Cell) -> float:
        """Of all contenders' turns, once."""
        if own := self._repeats.get(cell):
            return fmean(own)
        for known in _likeness(cell):
            if sums := self._sums.get(known):
                break
        else:
            sums = [[1.0, 1.0], [1.0, 1.0]]
        return sum(
            first * (taken / estimated if estimated else 1.0)
            for first, (estimated, taken) in zip(self._first(cell), sums, strict=True)
        )

    def _first(self, cell: Cell) -> tuple[float, float]:
        """Of reading and of decoding, by the pace alone."""
        amount = self._amounts[cell]
        return amount.read * self._pace.read, amount.said * self._pace.said / math.pow(cell.stand.users, _GAINS)

    def loaded(self, precision: str, seconds: float) -> None:
        """A model was."""
        self._loading[precision] = seconds

    def opened(self, stand: Stand, seconds: float) -> None:
        """A stand's engines were."""
        self._opening[stand] = seconds

    def measured(self, turns: Sequence[Turn], seconds: float) -> None:
        """One repeat of a cell took so long, all in all."""
        cell = turns[0].cell
        decoding = min(sum(turn.user_seconds for turn in turns) / cell.stand.users, seconds)
        self._repeats.setdefault(cell, []).append(seconds)
        for known in _likeness(cell):
            sums = self._sums.setdefault(known, [[0.0, 0.0], [0.0, 0.0]])
            for own, first, taken in zip(sums, self._first(cell), (seconds - decoding, decoding), strict=True):
                own[0] += first
                own[1] += taken


def _likeness(cell: Cell) -> tuple[object, ...]:
    """What a cell has in common with others, the nearest first."""
    stand = cell.stand
    return stand, (stand.input, stand.users), (stand.precision, stand.users), stand.users, None


class Machine(Protocol):
    """What measures. Each may take long."""

    @property
    def loaded(self) -> str:
        """The precision of the model that is loaded."""

    def load(self, precision: str) -> bool:
        """Load the model in another one; False: it cannot be had."""

    def open(self, stand: Stand) -> bool:
        """Make and warm up a stand's engines, for the cells that are measured next; False: there is no room."""

    def measure(self, cell: Cell, repeat: int) -> Sequence[Turn]:
        """All contenders, once."""


class TimeIsUp(Exception):
    """A part took so much longer than estimated that it was given up."""


class Schedule:
    """Every stand once, the cheapest first; then all of them again and again, as often as it fits; at last those that
    were measured least often, or of these whose repeats differ most.

    Args:
        done: each cell, and the repeats of it that were measured.
        turns: of which those repeats were made.
        repeats: of a cell at most.
        left: seconds that are left; infinite: no limit.
    """

    def __init__(
        self,
        costs: Costs,
        done: Mapping[Cell, Iterable[int]],
        turns: Sequence[Turn],
        repeats: int,
        left: Callable[[], float],
    ) -> None:
        self.costs, self._left, self._most = costs, left, repeats
        self.done = {cell: set(measured) for cell, measured in done.items()}
        self._turns = turns

    def run(self, machine: Machine, clock: Callable[[], float], on_round: Callable[[int], None]) -> None:
        """Measure; ``on_round`` hears how many repeats of cells each round over the stands has at most."""
        rounds = 0
        while planned := self.next_round(machine.loaded):
            on_round(sum(planned.values()))
            before = self._measured
            try:
                self._go_round(machine, planned, clock, backwards=rounds % 2 == 1)
            except TimeIsUp:
                return
            if self._measured == before and self._left() < math.inf:
                return
            rounds += 1

    @property
    def _measured(self) -> int:
        return sum(map(len, self.done.values()))

    def _go_round(
        self, machine: Machine, planned: Mapping[Cell, int], clock: Callable[[], float], backwards: bool
    ) -> None:
        stands: dict[Stand, list[Cell]] = {}
        for cell in planned:
            stands.setdefault(cell.stand, []).append(cell)
        precisions = sorted(dict.fromkeys(stand.precision for stand in stands), key=lambda each: each != machine.loaded)
        for precision in precisions:
            if precision != machine.loaded and not self._loads(machine, precision, clock):
                continue
            own = [stand for stand in stands if stand.precision == precision]
            for stand in sorted(own, key=lambda each: self._total(stands[each])):
                began = clock()
                cells = stands[stand][::-1] if backwards else stands[stand]
                if not any(self._fits(cell, self.costs.opening(stand)) for cell in cells):
                    continue
                if not machine.open(stand):
                    self._forget(cells)
                    continue
                self.costs.opened(stand, clock() - began)
                for turn in range(max(planned[cell] for cell in cells)):
                    for cell in cells:
                        if turn < planned[cell] and self._fits(cell):
                            self._measure(machine, cell, clock)

    def _loads(self, machine: Machine, precision: str, clock: Callable[[], float]) -> bool:
        began = clock()
        if not machine.load(precision):
            self._forget([cell for cell in self.done if cell.stand.precision == precision])
            return False
        self.costs.loaded(precision, clock() - began)
        return True

    def _measure(self, machine: Machine, cell: Cell, clock: Callable[[], float]) -> None:
        repeat = next(each for each in range(self._most) if each not in self.done[cell])
        began = clock()
        turns = machine.measure(cell, repeat)
        self.costs.measured(turns, clock() - began)
        self.done[cell].add(repeat)

    def _fits(self, cell: Cell, more: float = 0.0) -> bool:
        return self.costs.repeat(cell) + more <= self._left()

    def _total(self, cells: Iterable[Cell]) -> float:
        return sum(map(self.costs.repeat, cells))

    def _forget(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            del self.done[cell]

    def next_round(self, loaded: str) -> dict[Cell, int]:
        """How many repeats more of which cells fit, those of a stand together; ``loaded``: the precision that is."""
        open_ = [cell for cell, measured in self.done.items() if len(measured) < self._most]
        if self._left() == math.inf:
            return {cell: self._most - len(self.done[cell]) for cell in open_}
        unseen = [cell for cell in open_ if not self.done[cell]]
        totals: dict[Stand, float] = {}
        for cell in unseen:
            totals[cell.stand] = totals.get(cell.stand, 0.0) + self.costs.repeat(cell)
        if found := self._filled(sorted(unseen, key=lambda cell: totals[cell.stand]), loaded):
            return found
        seen = [cell for cell in open_ if self.done[cell]]
        opened = dict.fromkeys(cell.stand for cell in seen)
        ready = sum(map(self.costs.opening, opened))
        ready += sum(map(self.costs.loading, {stand.precision for stand in opened} - {loaded}))
        if seen and (often := int((self._left() - ready) / max(self._total(seen), 1e-9))) > 0:
            return {cell: min(often, self._most - len(self.done[cell])) for cell in seen}
        spreads = spreads_of(self._turns)
        rank = {cell: (len(self.done[cell]), -spreads.get(cell, 0.0), self.costs.repeat(cell)) for cell in seen}
        return self._filled(sorted(seen, key=rank.__getitem__), loaded)

    def _filled(self, cells: Sequence[Cell], loaded: str) -> dict[Cell, int]:
        """Once each, as many as fit, in this order."""
        left, opened, precisions = self._left(), set[Stand](), {loaded}
        found = {}
        for cell in cells:
            stand = cell.stand
            cost = self.costs.repeat(cell)
            cost += 0.0 if stand in opened else self.costs.opening(stand)
            cost += 0.0 if stand.precision in precisions else self.costs.loading(stand.precision)
            if cost <= left:
                left -= cost
                opened.add(stand)
                precisions.add(stand.precision)
                found[cell] = 1
        return found


def spreads_of(turns: Iterable[Turn]) -> dict[Cell, float]:
    """Of cells that were measured more than once: how far the repeats of a contender's speed over plain decoding's lie
    apart, as a factor; the widest of the contenders'."""
    seconds: dict[tuple[Cell, int], dict[str, float]] = {}
    for turn in turns:
        seconds.setdefault((turn.cell, turn.repeat), {})[turn.contender] = turn.seconds
    ratios: dict[Cell, dict[str, list[float]]] = {}
    for (cell, _), taken in seconds.items():
        for name in taken.keys() - {PLAIN} if PLAIN in taken else ():
            ratios.setdefault(cell, {}).setdefault(name, []).append(taken[PLAIN] / taken[name])
    return {
        cell: max(max(own) / min(own) for own in by_name.values())
        for cell, by_name in ratios.items()
        if max(map(len, by_name.values())) > 1
    }
