"""Measuring cells: contenders in turns over the same requests, one stand after the other."""

from __future__ import annotations

import gc
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from headstart.common.memory import require_room
from headstart.drafting.base import Drafter
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.options import parse_drafter
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_trials import try_passes
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.errors import ConfigError
from headstart.loading.model import Model
from headstart.passes.runner import cache_bytes_per_token
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.cells import SHORT, Budget, Cell, Grid, ResultsFile, Stand, Turn
from headstart_lab.bench.extent import Pace
from headstart_lab.bench.lengths import of_lengths
from headstart_lab.bench.planner_parts import Part
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.bench.work import Work, WorkCounter, counting_parts
from headstart_lab.workbench import PLAIN, Contender, Workbench

LONG = "long"
"""The group of prompts that were made as long as they are."""
PLANNER = "auto"
_LONG_PROMPTS = 2
"""Of each length: reading them takes most of the time."""
_WARM_UP = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
_PACE = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
_GAINS = 0.5
"""By which power of the users throughput grows, to estimate what a stand takes."""


@dataclass(frozen=True)
class Entrant:
    """A contender, or a planner without one of its parts."""

    text: str
    """The drafter, options included."""
    part: Part | None = None

    @property
    def name(self) -> str:
        return self.text if self.part is None else f"{self.text} without {self.part.name}"

    def contender(self, parts: PlannerParts) -> Contender:
        """To be opened. ``parts``: of a planner, before one is taken out."""
        name, options = parse_drafter(self.text)
        if name != PLANNER:
            return Contender.parse(self.text)
        planner = type("Planner", (AutoDrafter,), {"parts": parts if self.part is None else self.part.without(parts)})
        return Contender(self.name, lambda context: create_drafter(planner, context, **options))


def entrants(drafters: Sequence[str], parts: Sequence[Part]) -> list[Entrant]:
    """Plain decoding, the drafters, and the first of them without each of the parts.

    Raises:
        ConfigError: parts are to be taken out of what is no planner.
    """
    others = [Entrant(text) for text in drafters if text != PLAIN]
    if parts and (not others or parse_drafter(others[0].text)[0] != PLANNER):
        raise ConfigError(f"--without takes parts out of {PLANNER}; name that first in --drafters.")
    return [Entrant(PLAIN), *others, *(Entrant(others[0].text, part) for part in parts)]


@dataclass
class CellSitting:
    """A measurement of cells in progress.

    Args:
        load: a model in a precision.
        grid: the cells, together with the prompts' groups.
        entrants: plain decoding first.
        prompts: of which the first turns are asked.
        params: of every request, but for temperature and seed.
        results: what was measured, and will be.
        counts_work: instead of the time.
    """

    load: Callable[[str], Model]
    grid: Grid
    entrants: Sequence[Entrant]
    prompts: Sequence[BenchPrompt]
    params: SamplingParams
    results: ResultsFile
    counts_work: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    """What of the grid is not measured -> why."""
    model: Model | None = None
    """The one that was loaded last."""

    def run(
        self,
        repeats: int,
        seconds: float | None,
        on_plan: Callable[[int], None] = lambda cells: None,
        on_turns: Callable[[Sequence[Turn]], None] = lambda turns: None,
    ) -> None:
        """Measure every cell up to ``repeats`` times, in all of the time that is given (None: no limit), the cheapest
        stands first. ``on_plan`` hears how many repeats of cells that makes, ``on_turns`` is shown each."""
        deadline = math.inf if seconds is None else time.perf_counter() + seconds
        budget: Budget | None = None
        for precision in self.grid.precisions:
            # Before the next one is loaded.
            self.model = None
            gc.collect()
            try:
                self.model = self.load(precision)
            except ConfigError as error:
                self.left_out[precision] = str(error)
                if budget is not None:
                    budget.leave_out(precision)
                continue
            groups = {each: self._questions(self.model, each) for each in self.grid.inputs}
            if budget is None:
                budget = self._plan(self.model, groups, repeats, lambda: deadline - time.perf_counter())
                counts = {stand: budget.repeats_of(stand) for stand in budget.costs}
                on_plan(sum(len(self.grid.cells(each, groups[each.input])) * counts[each] for each in counts))
            own = [stand for stand in budget.costs if stand.precision == precision]
            for stand in sorted(own, key=budget.costs.__getitem__):
                self._take(stand, groups[stand.input], budget, deadline, on_turns)
                # Caches and drafters hold on to each other in circles.
                gc.collect()

    def _take(
        self,
        stand: Stand,
        groups: Mapping[str, Sequence[list[int]]],
        budget: Budget,
        deadline: float,
        on_turns: Callable[[Sequence[Turn]], None],
    ) -> None:
        """Measure one stand, if there is time and room for it."""
        assert self.model is not None
        began, count = time.perf_counter(), budget.repeats_of(stand)
        if count:
            try:
                self._measure(self.model, stand, self.grid.cells(stand, groups), groups, count, deadline, on_turns)
            except ConfigError as error:
                self._leave_out(stand, str(error))
                count = 0
        else:
            self._leave_out(stand, "the time does not suffice (--minutes)")
        budget.done(stand, time.perf_counter() - began, count)

    def _leave_out(self, stand: Stand, why: str) -> None:
        users = f"{stand.users} user{'s' * (stand.users > 1)}"
        self.left_out[f"{stand.precision}, {stand.input}, {users}"] = why

    def _questions(self, model: Model, input_: str) -> dict[str, list[list[int]]]:
        """Group -> token ids of its prompts, as far as they fit."""
        answer, most = self.params.max_tokens or 1, model.config.max_positions
        found: dict[str, list[list[int]]] = {}
        if input_ == SHORT:
            for prompt in self.prompts:
                tokens = encode_turns(model, prompt.turns[:1], [])
                if len(tokens) + answer <= most:
                    found.setdefault(prompt.group, []).append(tokens)
            return found
        if int(input_) > most:
            self.left_out[f"{input_} tokens"] = f"the model's context ends at {most}"
            return found
        try:
            made = of_lengths(model, self.prompts, [int(input_) - answer], _LONG_PROMPTS, answer)
        except ConfigError as error:
            self.left_out[f"{input_} tokens"] = str(error)
            return found
        return {LONG: [encode_turns(model, prompt.turns, []) for prompt in made]}

    def _plan(
        self,
        model: Model,
        groups: Mapping[str, Mapping[str, Sequence[Sequence[int]]]],
        repeats: int,
        left: Callable[[], float],
    ) -> Budget:
        """What the stands are expected to take, by how fast this machine decodes plainly."""
        pace = self._pace(model, groups)
        costs = {}
        for precision in self.grid.precisions:
            for stand in self.grid.stands(precision):
                asked = groups[stand.input]
                cells = self.grid.cells(stand, asked)
                open_ = [cell for cell in cells if len(self._done(cell)) < repeats]
                if open_:
                    costs[stand] = pace.opening + sum(self._cost(pace, cell, asked[cell.group]) for cell in open_)
        return Budget(costs, repeats, left)

    def _cost(self, pace: Pace, cell: Cell, prompts: Sequence[Sequence[int]]) -> float:
        """Seconds of a repeat."""
        users = cell.stand.users
        requests = max(users, len(prompts))
        read = sum(map(len, prompts)) / len(prompts) * pace.per_character
        said = (self.params.max_tokens or 1) * pace.per_token / math.pow(users, _GAINS)
        return len(self.entrants) * requests * (read + said)

    def _pace(self, model: Model, groups: Mapping[str, Mapping[str, Sequence[Sequence[int]]]]) -> Pace:
        """Seconds of a prompt's token (``per_character``) and of an answer's, decoding one text plainly."""
        prompts = [each for group in groups.values() for tokens in group.values() for each in tokens]
        if not prompts:
            return Pace(0.0, 0.0, 0.0)
        tokens = min(prompts, key=len)
        began = time.perf_counter()
        bench = Workbench.of_model(model, 1, len(tokens) + (_PACE.max_tokens or 1))
        engine = bench.open(Contender.parse(PLAIN))
        bench.decode(engine, bench.sequence([0, 1, 0, 1], _WARM_UP))
        opening = time.perf_counter() - began
        sequence = bench.sequence(tokens, _PACE)
        bench.decode(engine, sequence)
        stats = sequence.stats
        return Pace(
            opening * len(self.entrants),
            stats.prefill_seconds / len(tokens),
            (stats.seconds - stats.prefill_seconds) / max(stats.tokens, 1),
        )

    def _done(self, cell: Cell) -> set[int]:
        return self.results.repeats(cell, [each.name for each in self.entrants])

    def _measure(
        self,
        model: Model,
        stand: Stand,
        cells: Sequence[Cell],
        groups: Mapping[str, Sequence[list[int]]],
        repeats: int,
        deadline: float,
        on_turns: Callable[[Sequence[Turn]], None],
    ) -> None:
        """One stand. Its engines stay, as a server's do: what drafters learn in one cell they know in the next.

        Raises:
            ConfigError: its cache does not fit into memory, or a drafter cannot be built.
        """
        answer = self.params.max_tokens or 1
        context = stand.length or max(len(each) for tokens in groups.values() for each in tokens) + answer
        size = cache_bytes_per_token(model.backend) * context * stand.users
        require_room(size, "its cache", "name fewer --users or shorter --inputs")
        bench = Workbench.of_model(model, stand.users, context)
        works = {each.name: Work() if self.counts_work else None for each in self.entrants}
        # Passes are tried once for all.
        timed = PlannerParts(trials=cache(try_passes))
        engines = {each.name: self._open(bench, each, works[each.name], timed) for each in self.entrants}
        for place, cell in enumerate(cells):
            done = self._done(cell)
            for repeat in [each for each in range(repeats) if each not in done]:
                if time.perf_counter() > deadline:
                    return
                # Nobody always follows the same one; whoever came first in one repeat is the last in the next.
                order = np.random.default_rng(place).permutation(list(engines)).tolist()[:: 1 - 2 * (repeat % 2)]
                turns = [
                    self._turn(bench, engines[name], works[name], cell, name, repeat, groups[cell.group])
                    for name in order
                ]
                self.results.add(turns)
                on_turns(turns)

    def _open(self, bench: Workbench, entrant: Entrant, work: Work | None, timed: PlannerParts) -> Engine:
        weight_bytes = bench.backend.nbytes
        asks = parse_drafter(entrant.text)[0] not in (PLANNER, PLAIN)

        def counting(drafter: Drafter) -> Drafter:
            return drafter if work is None else WorkCounter(drafter, work, weight_bytes, asks)

        parts = timed if work is None else counting_parts(work, weight_bytes)
        engine = bench.open(entrant.contender(parts), counting)
        # What happens only once is charged to nobody.
        bench.decode(engine, bench.sequence([0, 1, 0, 1], _WARM_UP))
        return engine

    def _turn(
        self,
        bench: Workbench,
        engine: Engine,
        work: Work | None,
        cell: Cell,
        name: str,
        repeat: int,
        prompts: Sequence[list[int]],
    ) -> Turn:
        # Every prompt is asked at least once, and every user asks something.
        requests = max(cell.stand.users, len(prompts))
        sequences = [
            bench.sequence(prompts[i % len(prompts)], replace(self.params, temperature=cell.temperature, seed=i))
            for i in range(requests)
        ]
        if work is not None:
            work.taken()
        began = time.perf_counter()
        bench.decode(engine, *sequences)
        seconds = time.perf_counter() - began
        digest = hashlib.sha256()
        for each in sequences:
            digest.update(np.array([len(each.output), *each.output], np.int32).tobytes())
        return Turn(
            cell,
            name,
            repeat,
            tokens=sum(len(each.output) for each in sequences),
            seconds=seconds,
            user_seconds=sum(each.stats.seconds - each.stats.prefill_seconds for each in sequences),
            rounds=sum(each.stats.rounds for each in sequences),
            texts=digest.hexdigest(),
            must_agree=cell.temperature == 0 or not any(each.stats.sampled_rounds for each in sequences),
            work=None if work is None else work.taken(),
        )
