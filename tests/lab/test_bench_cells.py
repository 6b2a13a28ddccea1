"""Cells: what is measured in which turns, what a later call goes on from, and the work that it may take at most."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError
from headstart.loading.model import Model, load_model
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams
from headstart_charts.page import Table
from headstart_lab.bench.cells import Cell, Grid, ResultsFile, Stand, Turn, parse_inputs, parse_numbers
from headstart_lab.bench.cells_report import (
    best_table,
    contributions,
    exhibits,
    over_best,
    summarise,
    to_json,
    worst,
)
from headstart_lab.bench.cells_run import CellSitting, Entrant, entrants, order_of
from headstart_lab.bench.planner_parts import named_parts
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.workbench import PLAIN, Contender
from headstart_lab.wrapper import DrafterWrapper

PROMPTS = [
    BenchPrompt("a", "edit", ("Say it again: one two three four, one two three four, one two",)),
    BenchPrompt("b", "edit", ("aaaa bbbb aaaa bbbb aaaa",)),
    BenchPrompt("c", "prose", ("What is a boat?",)),
]
SHORT_ALONE = Grid(["fp32"], ["short"], [1, 3], [0.0, 1.0])
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, seed=0)


@pytest.fixture(scope="module")
def model(torch_model_dir: Path) -> Model:
    return load_model(torch_model_dir, "fp32")


def sitting(
    model: Model,
    grid: Grid = SHORT_ALONE,
    known: list[Entrant] | None = None,
    results: ResultsFile | None = None,
    work: bool = True,
) -> CellSitting:
    known = known or entrants([PLAIN, "auto"], [])
    kept = results or ResultsFile(None, {})
    return CellSitting(lambda precision: model, grid, known, PROMPTS, PARAMS, kept, work, turn_tokens=0)


@pytest.fixture(scope="module")
def counted(model: Model) -> CellSitting:
    """Every cell once, by work."""
    done = sitting(model)
    done.run(1, None)
    return done


def test_every_cell_is_measured_by_all_in_turns(counted: CellSitting) -> None:
    turns = counted.results.turns
    assert {turn.cell for turn in turns} == {
        Cell(Stand("fp32", "short", users), temperature, group)
        for users in (1, 3)
        for temperature in (0.0, 1.0)
        for group in ("edit", "prose")
    }
    assert Counter(turn.contender for turn in turns) == {PLAIN: 8, "auto": 8}
    # Every prompt is asked, and every user asks.
    assert {(t.cell.stand.users, t.cell.group, t.tokens) for t in turns} == {
        (1, "edit", 24),
        (1, "prose", 12),
        (3, "edit", 36),
        (3, "prose", 36),
    }
    assert {turn.contender for turn in turns[::2]} == {PLAIN, "auto"}


def test_texts_are_plain_decodings_and_work_is_bounded(counted: CellSitting) -> None:
    summaries = summarise(counted.results.turns)
    assert len(summaries) == 8
    assert not any(each.differing for each in summaries)
    # Counted in bytes of weights, which is what decoding waits for: never more than plainly, in any cell.
    found = worst(summaries, "auto")
    assert found is not None
    assert found.ratio.middle >= 1.0
    assert max(each.ratio.middle for each in summaries) > 1.2
    assert all(each.rows is not None and each.rows < 20 for each in summaries)
    assert any(each.calls for each in summaries)


def test_work_is_the_same_in_every_run(model: Model, counted: CellSitting) -> None:
    again = sitting(model, replace_grid(users=[1]))
    again.run(1, None)
    known = {(turn.cell, turn.contender): (turn.work, turn.texts) for turn in counted.results.turns}
    for turn in again.results.turns:
        assert (turn.work, turn.texts) == known[turn.cell, turn.contender]


def replace_grid(**changes: object) -> Grid:
    return replace(SHORT_ALONE, **changes)  # type: ignore[arg-type]


def test_a_later_call_goes_on_from_the_file(model: Model, tmp_path: Path) -> None:
    path, settings = tmp_path / "new" / "cells.jsonl", {"max_tokens": 12}
    one_user = replace_grid(users=[1], temperatures=[0.0])
    first = sitting(model, one_user, results=ResultsFile(path, settings))
    first.run(1, None)
    # The process was killed while it wrote a line.
    with path.open("a", encoding="utf-8") as file:
        file.write('{"cell": {"stand"')
    second = sitting(model, replace_grid(temperatures=[0.0]), results=ResultsFile(path, settings))
    assert second.results.turns == first.results.turns
    new: list[Cell] = []
    second.run(1, None, on_turns=lambda turns: new.append(turns[0].cell))
    assert {cell.stand.users for cell in new} == {3}
    assert ResultsFile(path, settings).turns == second.results.turns
    assert all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    with pytest.raises(ConfigError, match="max_tokens is 12, not 64"):
        ResultsFile(path, {"max_tokens": 64})


@pytest.mark.parametrize("text", ["no json\n", '{"format": "other"}\n', '["a"]\n', "\xff"])
def test_another_file_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(text.encode("latin-1") + b"\n")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="holds no cells"):
        ResultsFile(path, {})
    assert path.read_bytes() == before


def test_inputs_that_the_model_cannot_read_are_named(model: Model) -> None:
    grid = replace_grid(inputs=["short", "256", "8192"], users=[1], temperatures=[0.0])
    done = sitting(model, grid, [Entrant(PLAIN)])
    done.run(1, None)
    assert list(done.left_out) == ["8192 tokens"]
    assert "context ends at 512" in done.left_out["8192 tokens"]
    assert {turn.cell.group for turn in done.results.turns if turn.cell.stand.input == "256"} == {"long"}


def test_a_precision_that_cannot_be_had_is_left_out(model: Model) -> None:
    def load(precision: str) -> Model:
        if precision == "int4":
            raise ConfigError("there is no int4 here.")
        return model

    for precisions in (["int4", "fp32"], ["fp32", "int4"]):
        grid = replace_grid(precisions=precisions, users=[1], temperatures=[0.0])
        done = CellSitting(load, grid, [Entrant(PLAIN)], PROMPTS, PARAMS, ResultsFile(None, {}), True, 0)
        done.run(1, None)
        assert done.left_out == {"int4": "there is no int4 here."}
        assert {turn.cell.stand.precision for turn in done.results.turns} == {"fp32"}


def spoil(drafter, sequences, budgets):
    """Breaks the engine's promise from outside: it commits a token of its own."""
    for sequence in sequences:
        if len(sequence.tokens) == sequence.prompt_length + 3:
            list.__setitem__(sequence.tokens, -1, 65)
    return [DraftTree.empty()] * len(sequences)


def test_other_texts_than_plain_decodings_are_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.drafting.methods.suffix.drafter.SuffixDrafter.propose", spoil)
    known = entrants(["suffix"], [])
    done = sitting(model, replace_grid(users=[1], temperatures=[0.0]), known)
    done.run(1, None)
    summaries = summarise(done.results.turns)
    assert [each.differing for each in summaries] == [1, 1]
    titles = [each.title for each in exhibits(done.results.turns, summaries, known, {}) if isinstance(each, Table)]
    assert any("not plain decoding's" in title for title in titles)


def test_parts_are_taken_out_one_at_a_time(model: Model) -> None:
    known = entrants(["auto"], named_parts("min-probability,grades"))
    done = sitting(model, replace_grid(users=[1], temperatures=[0.0]), known, work=False)
    done.run(1, None)
    turns = done.results.turns
    assert len({turn.texts for turn in turns if turn.cell.group == "edit"}) == 1
    found = {each.part: each for each in contributions(turns, known)}
    assert set(found) == {"min-probability", "grades", "nothing"}
    assert all(each.cells == 2 and each.worst_without > 0 for each in found.values())
    assert found["nothing"].lines == 0 < found["grades"].lines
    summaries = summarise(turns)
    json.dumps(to_json(turns, summaries, known, {}, {}))
    first = exhibits(turns, summaries, known, {})[0]
    assert isinstance(first, Table)
    assert {row[0] for row in first.rows} == set(found)


def test_a_part_pays_where_most_cells_say_so() -> None:
    known = entrants(["auto"], named_parts("grades"))
    cells = [Cell(Stand("bf16", "short", 1), 0.0, str(group)) for group in range(4)]

    def verdict(*seconds: float, again: float = 1.0) -> str:
        """Of times without the part, over 1 with it, and ``again`` in half of the cells."""
        turns = []
        for place, (cell, taken) in enumerate(zip(cells, seconds, strict=True)):
            times = {PLAIN: 2.0, "auto": 1.0, "auto without grades": taken}
            times["auto without nothing"] = again if place % 2 else 1.0
            turns += [Turn(cell, name, 0, 10, time, time, 5, "", True) for name, time in times.items()]
        found = {each.part: each for each in contributions(turns, known)}
        assert found["grades"].worst_without == pytest.approx(2 / max(seconds))
        return found["grades"].verdict

    assert verdict(1.1, 1.2, 1.05, 1.1) == "pays"
    assert verdict(0.9, 0.9, 0.95, 0.9) == "costs"
    assert verdict(1.005, 1.005, 1.005, 1.005) == "not seen"
    assert verdict(1.3, 1.2, 0.9, 0.8) == "not seen"
    # Where equals differ as much, it is chance.
    assert verdict(1.1, 1.2, 1.05, 1.1, again=1.3) == "not seen"


def test_contenders_take_turns_at_being_first() -> None:
    for names in (["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]):
        for repeat in (0, 1):
            firsts = Counter(order_of(names, place, repeat)[0] for place in range(24))
            assert len(set(firsts.values())) == 1
            assert set(firsts) == set(names)
        for place in range(4):
            first, second = order_of(names, place, 0), order_of(names, place, 1)
            assert sorted(first) == sorted(second) == names
            assert first == second[::-1]
        # Nobody always follows the same one.
        before = {(order_of(names, place, 0) * 2)[order_of(names, place, 0).index("b") - 1] for place in range(4)}
        assert len(before) == min(len(names) - 1, 2)


def test_a_turn_says_enough_to_be_timed(model: Model) -> None:
    """Requests are asked again where few are asked for, and each user asks as many."""
    grid, plain = replace_grid(users=[1, 4], temperatures=[0.0]), [Entrant(PLAIN)]
    done = CellSitting(lambda precision: model, grid, plain, PROMPTS, PARAMS, ResultsFile(None, {}), turn_tokens=60)
    done.run(1, None)
    said = {(turn.cell.stand.users, turn.cell.group): turn.tokens for turn in done.results.turns}
    assert said == {(1, "edit"): 60, (1, "prose"): 60, (4, "edit"): 96, (4, "prose"): 96}


class Spy(DrafterWrapper):
    """Notes who begins, at which temperature."""

    def __init__(self, drafter, begun: list[float]) -> None:
        super().__init__(drafter)
        self._begun = begun

    def begin(self, sequence) -> None:
        self._begun.append(sequence.params.temperature)
        super().begin(sequence)

    def watch(self, rounds) -> None:
        pass


class Spied(Entrant):
    """Plain decoding, watched."""

    begun: ClassVar[list[list[float]]] = []
    """[engine] who began."""

    def contender(self, parts) -> Contender:
        self.begun.append(own := [])
        return Contender(self.name, lambda context: Spy(create_drafter(PLAIN, context), own))


@pytest.mark.parametrize("users", [1, 7])
def test_every_engine_answers_all_kinds_before_its_first_turn(model: Model, users: int) -> None:
    """With as many users as are measured, at every temperature: no cell is the one that teaches it."""
    Spied.begun.clear()
    done = sitting(model, replace_grid(users=[users]), [Spied(PLAIN), Spied("spied")])
    done.run(1, None)
    assert len(Spied.begun) == 2
    for begun in Spied.begun:
        # Two groups at two temperatures.
        warming = max(4, users)
        assert Counter(begun[:warming])[1.0] == warming // 2
        turns = [turn for turn in done.results.turns if turn.contender == "spied"]
        assert len(begun) == warming + sum(turn.tokens for turn in turns) // 12


def test_a_stand_without_room_is_left_out(model: Model) -> None:
    done = sitting(model, replace_grid(users=[1, 10**9], temperatures=[0.0]))
    done.run(1, None)
    assert list(done.left_out) == [f"fp32, short, {10**9} users"]
    assert {turn.cell.stand.users for turn in done.results.turns} == {1}


def test_auto_stands_beside_the_best_single_drafter_of_each_cell() -> None:
    known = entrants(["auto", "suffix", "eagle3:depth=4"], named_parts("grades"))
    seconds = {
        "chat": {PLAIN: 1.0, "auto": 5.0, "suffix": 8.0, "eagle3:depth=4": 5.5, "auto without grades": 1.0},
        "rag": {PLAIN: 9.0, "auto": 5.0, "suffix": 4.0, "eagle3:depth=4": 5.5, "auto without grades": 1.0},
    }
    turns = [
        Turn(
            Cell(Stand("bf16", "short", users), 0.0, group), name, repeat, 10, taken * (1 + repeat), taken, 5, "", True
        )
        for users in (1, 4)
        for group, times in seconds.items()
        for name, taken in times.items()
        for repeat in range(3)
    ]
    found = {each.cell: (each.best, each.gain.middle) for each in over_best(turns, known)}
    assert found[Cell(Stand("bf16", "short", 4), 0.0, "chat")] == ("eagle3:depth=4", pytest.approx(1.1))
    assert found[Cell(Stand("bf16", "short", 1), 0.0, "rag")] == ("suffix", pytest.approx(0.8))
    table = best_table(over_best(turns, known))
    assert table.title.endswith("-5.0% in the median group, -20.0% in the worst (rag)")
    assert [row[:4] for row in table.rows] == [
        ("chat", 2, "eagle3:depth=4", pytest.approx(1.1)),
        ("rag", 2, "suffix", pytest.approx(0.8)),
    ]
    assert table in [each for each in exhibits(turns, summarise(turns), known, {}) if isinstance(each, Table)]
    assert over_best(turns, entrants(["suffix"], [])) == over_best(turns, entrants(["auto"], [])) == []


def test_a_turn_that_takes_far_too_long_is_given_up(model: Model) -> None:
    calls = 0

    def clock() -> float:
        """Runs a thousand times slower until the first turn."""
        nonlocal calls
        calls += 1
        return 0.001 * calls + max(calls - started, 0)

    started = 10**9
    done = sitting(model, replace_grid(users=[1], temperatures=[0.0]))
    done.clock = clock

    def begin(cells: int) -> None:
        nonlocal started
        started = calls + 200

    done.run(9, 20, begin)
    assert 20 < clock() < 30
    assert Counter(turn.contender for turn in done.results.turns) in ({PLAIN: n, "auto": n} for n in range(10))


def test_what_is_asked_for_is_read() -> None:
    assert parse_inputs("short, 8k,100,8192") == ["short", "8192", "100"]
    assert parse_numbers("--users", "4,1,4", int, 1) == [4, 1]
    for wrong in ("", "eight", "0k", "-8"):
        with pytest.raises(ConfigError, match="--inputs"):
            parse_inputs(wrong)
    for wrong in ("", "0", "1.5", "many", "inf", "nan"):
        with pytest.raises(ConfigError, match="--users"):
            parse_numbers("--users", wrong, int, 1)
    with pytest.raises(ConfigError, match="name that first"):
        entrants(["suffix", "auto"], named_parts("grades"))
