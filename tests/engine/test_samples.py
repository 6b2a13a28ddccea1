"""Samples of one request: the first one reads the prompt for all, and each says what it would say alone."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest
from toys import ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams

VOCAB = 12
PROMPT = [7, 1, 2, 3, 9] * 9
PARAMS = SamplingParams(temperature=1.0, max_tokens=20, seed=5)


class Listener:
    """Asks for a tap, guesses nothing, and notes the positions that it is told of, by sequence."""

    needs = TargetSignals(taps=(0,))

    def __init__(self) -> None:
        self.positions: dict[int, list[int]] = {}
        self.states: dict[int, list[float]] = {}

    def begin(self, sequence: SequenceView) -> None:
        self.positions[sequence.id], self.states[sequence.id] = [], []

    def propose(self, sequences: Seq[SequenceView], budgets: Seq[DraftBudget]) -> list[DraftTree]:
        return [DraftTree.empty()] * len(sequences)

    def observe(self, outcomes: Seq[RoundOutcome]) -> None:
        for outcome in outcomes:
            self.positions[outcome.sequence.id] += [outcome.first_position + row for row in outcome.kept_rows]
            self.states[outcome.sequence.id] += outcome.hidden[0][outcome.kept_rows, 0].tolist()

    def end(self, sequence_id: int) -> None: ...


def new_engine(drafter: str | Listener = "ngram", *, cache_tokens: int = 800, limits: Limits | None = None) -> Engine:
    backend = ToyBackend(VOCAB, hashed_logits(VOCAB, 3, order=8, scale=3.0))
    return toy_engine(backend, drafter, cache_tokens=cache_tokens, limits=limits)


def samples(engine: Engine, count: int, prompt: list[int] = PROMPT) -> list[Sequence]:
    made = [toy_sequence(engine, prompt, sequence_id=i, params=PARAMS, sample=i) for i in range(count)]
    for sequence in made[1:]:
        sequence.leader = made[0]
    return made


def alone(count: int, prompt: list[int] = PROMPT) -> list[list[int]]:
    return [run_all(engine, [samples(engine, count, prompt)[i]])[0] for i in range(count) for engine in [new_engine()]]


@pytest.mark.parametrize("rows", [512, 7])
@pytest.mark.parametrize("length", [1, 2, 9, 45])
def test_each_says_what_it_says_alone_and_the_prompt_is_computed_once(length: int, rows: int) -> None:
    engine = new_engine("none", limits=Limits(max_rows=rows))
    made = samples(engine, 4, PROMPT[:length])
    assert run_all(engine, made) == alone(4, PROMPT[:length])
    decoded = sum(sequence.stats.rounds for sequence in made)
    assert engine.runner.backend.rows_seen == length - 1 + decoded  # type: ignore[attr-defined]
    assert [sequence.stats.cached_tokens for sequence in made] == [0] + 3 * [length - 1]


def test_a_sample_that_comes_late_takes_the_prompt_over_from_one_that_decodes() -> None:
    engine = new_engine(limits=Limits(max_sequences=2))
    made = samples(engine, 2)
    engine.add(made[0])
    for _ in range(4):
        engine.step()
    assert made[0].num_output
    engine.add(made[1])
    while not engine.idle:
        engine.step()
        engine.check()
    assert [sequence.output for sequence in made] == alone(2)
    assert made[1].stats.cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("steps", range(8))
def test_whoever_is_left_without_the_first_sample_reads_by_itself(steps: int) -> None:
    engine = new_engine(limits=Limits(max_rows=9))
    made = samples(engine, 3)
    for sequence in made:
        engine.add(sequence)
    for _ in range(steps):
        engine.step()
    engine.abort(made[0])
    while not engine.idle:
        engine.step()
        engine.check()
    assert [sequence.output for sequence in made[1:]] == alone(3)[1:]


def test_samples_give_way_to_each_other_where_room_is_scarce() -> None:
    engine = new_engine(cache_tokens=80)
    made = samples(engine, 5)
    assert run_all(engine, made) == alone(5)
    assert sum(sequence.stats.preemptions for sequence in made)


def test_shared_prompts_let_more_samples_in() -> None:
    engine = new_engine(cache_tokens=96)
    for sequence in samples(engine, 4):
        engine.add(sequence)
    engine.step()
    assert len(engine.running) == 4


def test_the_drafter_of_each_hears_the_whole_prompt_once() -> None:
    listener = Listener()
    engine = new_engine(listener, limits=Limits(max_rows=9))
    made = samples(engine, 3)
    run_all(engine, made)
    for sequence in made:
        assert listener.positions[sequence.id] == list(range(len(sequence.tokens) - 1))
        assert listener.states[sequence.id] == sequence.tokens[:-1]


def test_all_know_the_log_probabilities_of_the_prompt() -> None:
    engine = new_engine()
    made = samples(engine, 3)
    for sequence in made:
        sequence.params = replace(sequence.params, prompt_logprobs=2)
    run_all(engine, made)
    assert [entry.token_id for entry in made[0].prompt_logprobs] == PROMPT[1:]
    assert made[2].prompt_logprobs == made[1].prompt_logprobs == made[0].prompt_logprobs
