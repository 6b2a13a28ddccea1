"""Whatever raises, wherever it does, ends the request that it belongs to; all others say what they say alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from toys import ToyBackend, ToyStorage, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.engine.beams import BeamGroup
from headstart.engine.engine import Engine
from headstart.engine.outputs import FinishReason
from headstart.engine.pool import DrafterPool
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence as EngineSequence
from headstart.passes.batch import PassBatch, PassOutput
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams

VOCAB, POISON = 12, 12
"""A token that only the guilty read, and never say."""
LOGITS = hashed_logits(VOCAB, 3, order=3, scale=2.0)
GREEDY = SamplingParams(temperature=0, max_tokens=20)
BEAMS = SamplingParams(beam_width=3, n=2, max_tokens=10)


def logits_of(context: tuple[int, ...]) -> np.ndarray:
    return np.append(LOGITS(context), -50.0)


class Poisoned(ToyBackend):
    """Cannot compute passes of which ``fails`` says so."""

    def __init__(self, fails: Callable[[PassBatch], bool], error: Exception, keeps_states: bool = False) -> None:
        super().__init__(VOCAB + 1, logits_of, keeps_states=keeps_states)
        self.fails, self.error = fails, error

    def forward(self, batch: PassBatch, storage: ToyStorage) -> PassOutput:
        output = super().forward(batch, storage)  # what a failed pass has written must not matter
        if self.fails(batch):
            raise self.error
        return output


def reads_poison(batch: PassBatch) -> bool:
    return POISON in batch.tokens


def poisoned_engine(
    fails: Callable[[PassBatch], bool] = reads_poison,
    error: Exception | None = None,
    drafter: object = "suffix",
    keeps_states: bool = False,
) -> Engine:
    engine = toy_engine(
        Poisoned(fails, error or ValueError("no such pass"), keeps_states),
        drafter,  # type: ignore[arg-type]
        limits=Limits(max_sequences=9, max_rows=32, draft_rows=16),
    )
    engine.drafters.tolerant = True
    return engine


def beams_of(engine: Engine, prompt: Sequence[int], first_id: int) -> BeamGroup:
    return BeamGroup([toy_sequence(engine, prompt, sequence_id=first_id + i, params=BEAMS, sample=i) for i in range(2)])


def served(engine: Engine, sequences: Sequence[EngineSequence]) -> None:
    for sequence in sequences:
        engine.add(sequence)
    while not engine.idle:
        engine.step()
        engine.check()
    allocator = engine.runner.cache.allocator
    assert not any(map(allocator.references, range(allocator.num_blocks)))


def requests(engine: Engine, poison: Sequence[int] = ()) -> list[EngineSequence]:
    """Of many kinds; the prompts of those in ``poison`` (places) end with the token that nobody can compute."""
    found: list[EngineSequence] = []
    for place in range(6):
        prompt = [7, 1, 2, 3, 9, place] * 3 + [POISON] * (place in poison)
        if place % 3 == 2:
            found += beams_of(engine, prompt, 10 * place).results
        else:
            params = SamplingParams(temperature=0.8 * (place % 2), max_tokens=20, logprobs=1, seed=place)
            found.append(toy_sequence(engine, prompt, sequence_id=10 * place, params=params))
    return found


@cache
def alone() -> dict[int, list[int]]:
    """id -> what each of ``requests`` says."""
    said: dict[int, list[int]] = {}
    for place in range(6):
        engine = toy_engine(ToyBackend(VOCAB + 1, logits_of))
        own = [each for each in requests(engine) if each.id // 10 == place]
        run_all(engine, own)
        said |= {each.id: each.output for each in own}
    return said


def unharmed(sequences: Sequence[EngineSequence], guilty: Sequence[int]) -> bool:
    """Whether the places that are guilty, and no others, have failed."""
    expected = alone()
    return all(
        (each.finish_reason is FinishReason.ERROR)
        if each.id // 10 in guilty
        else (each.output == expected[each.id] and each.error is None)
        for each in sequences
    )


@pytest.mark.parametrize("keeps_states", [False, True])
@pytest.mark.parametrize("guilty", [(1,), (2,), (0, 2, 4)])
def test_a_pass_that_cannot_be_computed_ends_whose_rows_they_were(guilty: tuple[int, ...], keeps_states: bool) -> None:
    engine = poisoned_engine(keeps_states=keeps_states)
    sequences = requests(engine, guilty)
    served(engine, sequences)
    assert unharmed(sequences, guilty)
    assert {each.error for each in sequences if each.error} == {"the pass that computed this request failed."}
    assert engine.runner.failed_passes


def test_passes_that_fail_only_together_end_nobody() -> None:
    engine = poisoned_engine(lambda batch: batch.num_sequences > 2)
    sequences = [each for each in requests(engine) if each.group is None]
    served(engine, sequences)
    assert unharmed(sequences, ())


def test_where_memory_lacks_for_one_it_is_said_to_that_one() -> None:
    engine = poisoned_engine(error=MemoryError())
    sequences = requests(engine, [3])
    served(engine, sequences)
    assert unharmed(sequences, [3])
    assert [each.id for each in sequences if each.out_of_memory] == [30]


class GuessesPoison:
    """Guesses the token that no pass can read, for sequences of ``places``, and what repeats for others."""

    def __init__(self, places: Sequence[int]) -> None:
        self.needs = TargetSignals()
        self.places = places

    def begin(self, sequence: SequenceView) -> None: ...

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [
            DraftTree.from_paths([[POISON if each.id // 10 in self.places else each.tokens[-1]]], 1)
            if budget.nodes
            else DraftTree.empty()
            for each, budget in zip(sequences, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def end(self, sequence_id: int) -> None: ...


@pytest.mark.parametrize("places", [[1], [0, 1, 2, 3, 4, 5]])
def test_guesses_that_cannot_be_computed_cost_guesses_alone(places: list[int]) -> None:
    engine = poisoned_engine(drafter=GuessesPoison(places))
    sequences = [each for each in requests(engine) if each.group is None]
    served(engine, sequences)
    assert unharmed(sequences, ())
    assert [each.stats.drafted > 1 for each in sequences] == [each.id // 10 not in places for each in sequences]
    assert engine.drafters.faults["default"] == sum(each.id // 10 in places for each in sequences)


class RaisesFor(GuessesPoison):
    """Raises where it meets one sequence."""

    def __init__(self, where: str) -> None:
        super().__init__([])
        self.where = where

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self.where == "propose" and any(each.id == 10 for each in sequences):
            raise ZeroDivisionError
        return super().propose(sequences, budgets)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        if self.where == "observe" and any(each.sequence.id == 10 for each in outcomes):
            raise ZeroDivisionError


@pytest.mark.parametrize("where", ["propose", "observe"])
def test_a_drafter_that_fails_for_one_sequence_goes_on_guessing_for_others(where: str) -> None:
    engine = poisoned_engine(drafter=RaisesFor(where))
    for turn in range(5):
        sequences = [each for each in requests(engine) if each.group is None]
        served(engine, sequences)
        assert unharmed(sequences, ())
        assert [each.stats.drafted > 2 for each in sequences] == [each.id != 10 for each in sequences], turn
    assert engine.drafters.faults["default"] == 5


@pytest.mark.parametrize("needs", [TargetSignals(taps=(99,)), None])
@pytest.mark.parametrize("at_start", [True, False])
def test_a_drafter_that_asks_for_what_no_pass_shows_ends_nobody(needs: TargetSignals | None, at_start: bool) -> None:
    drafter = GuessesPoison([])
    engine = poisoned_engine(lambda batch: 99 in batch.taps, drafter=drafter)
    drafter.needs = needs if at_start else drafter.needs  # type: ignore[assignment]
    sequences = requests(engine)
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(3):
        engine.step()
    drafter.needs = needs  # type: ignore[assignment]
    served(engine, [])
    assert unharmed(sequences, ())
    assert (engine.drafters.faults["default"] > 0) == (needs is not None)


def break_reserve(engine: Engine, guilty: set[int]) -> None:
    reserve = engine.runner.cache.reserve

    def broken(rows: dict[int, int], *others: object, **more: object) -> object:
        if guilty & rows.keys():
            raise RuntimeError("no reservation")
        return reserve(rows, *others, **more)  # type: ignore[arg-type]

    engine.runner.cache.reserve = broken  # type: ignore[assignment]


def break_commit(engine: Engine, guilty: set[int]) -> None:
    commit = engine.runner.cache.commit

    def broken(sequence_id: int, rows: Sequence[int]) -> None:
        if sequence_id in guilty:
            raise RuntimeError("no commit")
        commit(sequence_id, rows)

    engine.runner.cache.commit = broken  # type: ignore[method-assign]


def break_add(engine: Engine, guilty: set[int]) -> None:
    add = engine.runner.cache.add

    def broken(sequence_id: int, *others: object) -> None:
        if sequence_id in guilty:
            raise RuntimeError("no place")
        add(sequence_id, *others)  # type: ignore[arg-type]

    engine.runner.cache.add = broken  # type: ignore[method-assign]


class BrokenText:
    """Of a sequence that says something its text cannot show."""

    stop = None

    def append(self, token_id: int, ends: bool) -> None:
        raise UnicodeError("no such character")

    def watch(self) -> None:
        return None


def break_text(engine: Engine, guilty: set[int]) -> None:
    for sequence in engine.waiting:
        if sequence.id in guilty:
            sequence.text = BrokenText()


@pytest.mark.parametrize("broken", [break_reserve, break_commit, break_add, break_text])
@pytest.mark.parametrize("prefixes", [True, False])
def test_an_error_between_passes_ends_whose_it_was(broken: Callable[[Engine, set[int]], None], prefixes: bool) -> None:
    engine = poisoned_engine()
    if prefixes:
        engine.runner.cache.pool.prefixes = PrefixIndex("toy")
    sequences = requests(engine)
    for sequence in sequences:
        engine.add(sequence)
    broken(engine, {10, 40})
    served(engine, [])
    assert unharmed(sequences, [1, 4])


def test_an_error_of_a_search_between_passes_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = poisoned_engine()
    sequences = requests(engine)
    guilty = sequences[2].group
    move = BeamGroup.move

    def broken(group: BeamGroup, *arguments: object) -> object:
        moved = move(group, *arguments)  # type: ignore[arg-type]
        if group is guilty and group.search.steps > 3:
            raise RuntimeError("no move")
        return moved

    monkeypatch.setattr(BeamGroup, "move", broken)
    served(engine, sequences)
    assert unharmed(sequences, [2])


def test_a_search_that_cannot_fork_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = poisoned_engine()
    sequences = requests(engine)
    take = engine.runner.cache.take

    def broken(sequence_id: int, source: int, rows: Sequence[int]) -> None:
        if engine.running[-1].group is not sequences[2].group:
            raise RuntimeError("no fork")
        take(sequence_id, source, rows)

    engine.runner.cache.take = broken  # type: ignore[method-assign]
    served(engine, sequences)
    assert unharmed(sequences, [2, 5])


def test_prompt_rows_that_are_no_numbers_end_their_own_request() -> None:
    """Log-probabilities of a prompt look at rows that nothing is sampled from."""
    engine = toy_engine(ToyBackend(VOCAB, lambda seen: LOGITS(seen) + (np.nan if seen[-2:] == (8, 8) else 0)))
    good = toy_sequence(engine, [1, 2, 3], sequence_id=0, params=GREEDY)
    bad = toy_sequence(
        engine, [8, 8, 3, 4], sequence_id=1, params=SamplingParams(temperature=0, max_tokens=9, prompt_logprobs=1)
    )
    served(engine, [good, bad])
    assert "not a finite number" in str(bad.error)
    assert good.error is None
    assert good.num_output == 20


def test_what_an_encoder_cannot_read_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = poisoned_engine()
    sequences = [each for each in requests(engine) if each.group is None]
    for sequence in sequences:
        engine.add(sequence)
        sequence.source = object()  # type: ignore[assignment]

    def encode(sequence_id: int) -> bool:
        if sequence_id == 10:
            raise RuntimeError("no such sound")
        return False

    monkeypatch.setattr(engine.runner, "encode", encode)
    monkeypatch.setattr(engine.runner.cache, "memory_blocks_needed", lambda source, salt: 0)
    add = engine.runner.cache.add
    monkeypatch.setattr(engine.runner.cache, "add", lambda sequence_id, salt, *_: add(sequence_id, salt))
    served(engine, [])
    assert unharmed(sequences, [1])


def test_without_tolerance_what_a_drafter_raises_comes_out() -> None:
    engine = poisoned_engine(drafter=RaisesFor("propose"))
    engine.drafters = DrafterPool(engine.drafters.drafters, "default")
    sequences = [each for each in requests(engine) if each.group is None]
    with pytest.raises(ZeroDivisionError):
        served(engine, sequences)
    engine.abort_all()
    assert engine.idle
    assert engine.runner.cache.allocator.num_free == engine.runner.cache.allocator.num_blocks
