"""Measuring cells: contenders in turns over the same requests, one stand after the other."""

from __future__ import annotations

import gc
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

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
from headstart_lab.bench.cells import SHORT, Cell, Grid, ResultsFile, Stand, Turn
from headstart_lab.bench.cells_plan import Amount, CellPace, Costs, Schedule, TimeIsUp
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
TURN_TOKENS = 256
"""A turn says at least so many, unless texts end before: of few or short answers more are asked for."""
_SAID = 1024
MOST_ANSWER, _LEAST_ANSWER = 128, 32
"""Tokens of an answer, unless they are named: ``_SAID`` over a turn's requests, within these. So the four prompts of a
group say 512, 16 users 1,024 and 64 users 2,048: 3 to 8 seconds on two cores."""
_WARM_READ = 48
"""Tokens of a prompt that is read to warm up."""
_WARM_UP = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, seed=0)
_FIRST = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
_PACE = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
_OVERRUN = 1.1
"""Later than this, a turn that takes longer than was estimated is given up."""


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
class _OpenStand:
    """What a stand's turns run on."""

    bench: Workbench
    works: dict[str, Work | None]
    engines: dict[str, Engine]


@dataclass
class CellSitting:
    """A measurement of cells in progress.

    Args:
        load_model: in a precision.
        grid: the cells, together with the prompts' groups.
        entrants: plain decoding first.
        prompts: of which the first turns are asked.
        params: of every request, but for temperature and seed. No ``max_tokens``: by the number of users.
        results: what was measured, and will be.
        counts_work: instead of the time.
        turn_tokens: that a contender says in a cell at least, on short inputs.
        clock: seconds.
    """

    load_model: Callable[[str], Model]
    grid: Grid
    entrants: Sequence[Entrant]
    prompts: Sequence[BenchPrompt]
    params: SamplingParams
    results: ResultsFile
    counts_work: bool = False
    turn_tokens: int = TURN_TOKENS
    clock: Callable[[], float] = time.perf_counter
    left_out: dict[str, str] = field(default_factory=dict)
    """What of the grid is not measured -> why."""
    model: Model | None = None
    """The one that was loaded last."""
    _loaded: str = field(default="", init=False)
    _latest: float = field(default=math.inf, init=False)
    _groups: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict, init=False)
    """Input -> group -> token ids of its prompts."""
    _stand: _OpenStand | None = field(default=None, init=False)
    _on_turns: Callable[[Sequence[Turn]], None] = field(default=lambda turns: None, init=False)

    def run(
        self,
        repeats: int,
        seconds: float | None,
        on_round: Callable[[int], None] = lambda cells: None,
        on_turns: Callable[[Sequence[Turn]], None] = lambda turns: None,
    ) -> None:
        """Measure every cell up to ``repeats`` times, in all of the time that is given (None: no limit), as
        ``Schedule`` says. ``on_round`` hears how many repeats of cells a round over the stands has at most,
        ``on_turns`` is shown each."""
        began = self.clock()
        end, self._latest = (math.inf,) * 2 if seconds is None else (began + seconds, began + _OVERRUN * seconds)
        self._on_turns = on_turns
        if not any(self.load(precision) for precision in self.grid.precisions):
            return
        assert self.model is not None
        loading = self.clock() - began
        self._groups = {each: self._questions(self.model, each) for each in self.grid.inputs}
        precisions = [each for each in self.grid.precisions if each not in self.left_out]
        stands = [stand for each in precisions for stand in self.grid.stands(each)]
        cells = [cell for stand in stands for cell in self.grid.cells(stand, self._groups[stand.input])]
        costs = Costs(self._pace(self.model), {cell: self._amount(cell) for cell in cells})
        costs.loaded(self.loaded, loading)
        names = [each.name for each in self.entrants]
        done = {cell: self.results.repeats(cell, names) for cell in cells}
        schedule = Schedule(costs, done, self.results.turns, repeats, lambda: end - self.clock())
        schedule.run(self, self.clock, on_round)
        self._close()
        for stand in stands:
            missing = sum(not schedule.done.get(cell, True) for cell in cells if cell.stand == stand)
            if missing:
                self._leave_out(stand, f"the time does not suffice (--minutes) for {missing} of its cells")

    @property
    def loaded(self) -> str:
        return self._loaded

    def load(self, precision: str) -> bool:
        # Before the next one is loaded.
        self._close()
        self.model, self._loaded = None, ""
        gc.collect()
        try:
            self.model, self._loaded = self.load_model(precision), precision
        except ConfigError as error:
            self.left_out[precision] = str(error)
        return self.model is not None

    def open(self, stand: Stand) -> bool:
        self._close()
        try:
            self._stand = self._opened(stand)
        except ConfigError as error:
            self._leave_out(stand, str(error))
            return False
        self._warm_up(stand, self._stand)
        return True

    def _close(self) -> None:
        self._stand = None
        # Caches and drafters hold on to each other in circles.
        gc.collect()

    def _leave_out(self, stand: Stand, why: str) -> None:
        users = f"{stand.users} user{'s' * (stand.users > 1)}"
        self.left_out[f"{stand.precision}, {stand.input}, {users}"] = why

    def _questions(self, model: Model, input_: str) -> dict[str, list[list[int]]]:
        """Group -> token ids of its prompts, as far as they fit."""
        answer, most = self._answer, model.config.max_positions
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

    @property
    def _answer(self) -> int:
        """Tokens of the longest answers."""
        return self.params.max_tokens or MOST_ANSWER

    def _asks(self, cell: Cell) -> tuple[int, int]:
        """How many requests a turn has, and how many tokens each says at most: every prompt is asked at least once,
        every user asks something and none waits for another's end, and ``turn_tokens`` are said."""
        users, prompts = cell.stand.users, self._groups[cell.stand.input][cell.group]
        requests = max(users, len(prompts))
        answer = self.params.max_tokens or min(max(_SAID // requests, _LEAST_ANSWER), MOST_ANSWER)
        if cell.stand.input == SHORT:
            requests = max(requests, math.ceil(self.turn_tokens / answer))
        return users * math.ceil(requests / users), answer

    def _amount(self, cell: Cell) -> Amount:
        prompts, (requests, answer) = self._groups[cell.stand.input][cell.group], self._asks(cell)
        read = requests * sum(map(len, prompts)) // len(prompts)
        return Amount(len(self.entrants) * read, len(self.entrants) * requests * answer)

    def _pace(self, model: Model) -> CellPace:
        """Decoding one text plainly."""
        prompts = [each for group in self._groups.values() for tokens in group.values() for each in tokens]
        if not prompts:
            return CellPace(0.0, 0.0, 0.0)
        tokens, began = min(prompts, key=len), self.clock()
        bench = Workbench.of_model(model, 1, len(tokens) + (_PACE.max_tokens or 1))
        engine = bench.open(Contender.parse(PLAIN))
        bench.decode(engine, bench.sequence([0, 1, 0, 1], _FIRST))
        opening = self.clock() - began
        sequence = bench.sequence(tokens, _PACE)
        bench.decode(engine, sequence)
        stats = sequence.stats
        return CellPace(
            opening * len(self.entrants),
            stats.prefill_seconds / len(tokens),
            (stats.seconds - stats.prefill_seconds) / max(stats.tokens, 1),
        )

    def _opened(self, stand: Stand) -> _OpenStand:
        """A stand's engines. They stay for all of its cells, as a server's do: what drafters learn in one cell they
        know in the next.

        Raises:
            ConfigError: its cache does not fit into memory, or a drafter cannot be built.
        """
        assert self.model is not None
        prompts = [tokens for group in self._groups[stand.input].values() for tokens in group]
        context = stand.length or max(map(len, prompts)) + self._answer
        size = cache_bytes_per_token(self.model.backend) * context * stand.users
        require_room(size, "its cache", "name fewer --users or shorter --inputs")
        bench = Workbench.of_model(self.model, stand.users, context)
        bench.on_tokens = self._watch_time
        works = {each.name: Work() if self.counts_work else None for each in self.entrants}
        # Passes are tried once for all.
        timed = PlannerParts(trials=cache(try_passes))
        engines = {each.name: self._engine(bench, each, works[each.name], timed) for each in self.entrants}
        return _OpenStand(bench, works, engines)

    def _engine(self, bench: Workbench, entrant: Entrant, work: Work | None, timed: PlannerParts) -> Engine:
        weight_bytes = bench.backend.nbytes
        asks = parse_drafter(entrant.text)[0] not in (PLANNER, PLAIN)

        def counting(drafter: Drafter) -> Drafter:
            return drafter if work is None else WorkCounter(drafter, work, weight_bytes, asks)

        parts = timed if work is None else counting_parts(work, weight_bytes)
        return bench.open(entrant.contender(parts), counting)

    def _warm_up(self, stand: Stand, opened: _OpenStand) -> None:
        """What happens only once is charged to nobody, and no cell is the one that teaches the planner: each contender
        answers the ends of all groups' prompts, at all temperatures by turns, with as many users as are measured."""
        kinds = list(product(self.grid.temperatures, self._groups[stand.input].values()))
        params = replace(_WARM_UP, max_tokens=min(_WARM_UP.max_tokens or 1, self._answer))
        for engine in opened.engines.values():
            asked = [kinds[i % len(kinds)] for i in range(max(stand.users, len(kinds)))]
            sequences = [
                opened.bench.sequence(prompts[0][-_WARM_READ:], replace(params, temperature=temperature))
                for temperature, prompts in asked
            ]
            opened.bench.decode(engine, *sequences)

    def measure(self, cell: Cell, repeat: int) -> Sequence[Turn]:
        assert self._stand is not None
        place = self.grid.cells(cell.stand, self._groups[cell.stand.input]).index(cell)
        order = order_of(list(self._stand.engines), place, repeat)
        turns = [self._turn(self._stand, cell, name, repeat) for name in order]
        self.results.add(turns)
        self._on_turns(turns)
        return turns

    def _watch_time(self, tokens: int) -> None:
        """Raises:
        TimeIsUp: much later than was planned.
        """
        if self.clock() > self._latest:
            raise TimeIsUp

    def _turn(self, opened: _OpenStand, cell: Cell, name: str, repeat: int) -> Turn:
        bench, work, prompts = opened.bench, opened.works[name], self._groups[cell.stand.input][cell.group]
        requests, answer = self._asks(cell)
        params = replace(self.params, temperature=cell.temperature, max_tokens=answer)
        sequences = [bench.sequence(prompts[i % len(prompts)], replace(params, seed=i)) for i in range(requests)]
        if work is not None:
            work.taken()
        began = self.clock()
        bench.decode(opened.engines[name], *sequences)
        seconds = self.clock() - began
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


def order_of(names: Sequence[str], place: int, repeat: int) -> list[str]:
    """Who decodes when, in the cell at ``place`` of its stand: from one cell to the next, and from one repeat to the
    next, the first becomes the last; each is first as often as the others, and nobody always follows the same one."""
    start = place // 2 % len(names)
    turned = [*names[start:], *names[:start]]
    return turned[::-1] if (place + repeat) % 2 else turned
