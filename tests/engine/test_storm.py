"""Whatever happens around a request (others join, leave, share, run out of room), it says what it would say alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from thinning import thorough_but
from toys import ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.engine.pool import DrafterPool
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner
from headstart.sampling.params import SamplingParams

VOCAB, BLOCK = 12, 4
DRAFTERS = ("ngram", "suffix", "recycling", "random")
POISON = -1
"""What no sequence holds: a row that sees it has other logits."""


def storm_engine(
    *, cache_tokens: int = 96, prefixes: bool = True, limits: Limits | None = None, num_states: int = 0
) -> Engine:
    """``num_states``: of a model that keeps any."""
    backend = ToyBackend(VOCAB, hashed_logits(VOCAB, 3, order=5, scale=3.0), keeps_states=num_states > 0)
    runner = ModelRunner(backend, cache_tokens, BLOCK, PrefixIndex("toy") if prefixes else None, num_states)
    context = DraftContext(vocab_size=VOCAB, runner=runner)
    drafters = {name: create_drafter(name, context) for name in DRAFTERS}
    return Engine(runner, DrafterPool(drafters, "ngram"), limits or Limits(max_sequences=5, max_rows=24, draft_rows=10))


def random_request(engine: Engine, rng: np.random.Generator, sequence_id: int) -> Sequence:
    """Prompts begin with one of two long prefixes or with nothing in common."""
    prefix = [[], [1, 2, 3] * 5, [4] * 9][rng.integers(3)]
    prompt = [*prefix, *rng.integers(0, VOCAB, size=rng.integers(1, 12)).tolist()]
    params = SamplingParams(temperature=float(rng.choice([0.0, 0.9])), max_tokens=int(rng.integers(1, 30)), seed=7)
    wishes = SpeculationParams(
        enabled=bool(rng.integers(5)),
        drafter=str(rng.choice(DRAFTERS)),
        draft_tokens=int(rng.integers(5)) if rng.integers(2) else None,
        verify=VerifyRule.COUPLED,
    )
    sequence = toy_sequence(engine, prompt, sequence_id=sequence_id, params=params, speculation=wishes)
    sequence.cache_salt = str(rng.integers(2))
    return sequence


def another_sample(engine: Engine, first: Sequence, sequence_id: int) -> Sequence:
    """Of the same request."""
    prompt, sample = first.tokens[: first.prompt_length], first.noise.sample + 1
    sequence = toy_sequence(
        engine, prompt, sequence_id=sequence_id, params=first.params, speculation=first.speculation, sample=sample
    )
    sequence.cache_salt, sequence.leader = first.cache_salt, first.leader or first
    return sequence


def alone(sequence: Sequence) -> list[int]:
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB, 3, order=5, scale=3.0)))
    prompt = sequence.tokens[: sequence.prompt_length]
    (output,) = run_all(engine, [toy_sequence(engine, prompt, params=sequence.params, sample=sequence.noise.sample)])
    return output


def poison_free_slots(engine: Engine) -> None:
    """Overwrite everything that no sequence and no published block owns."""
    cache = engine.runner.cache
    assert cache.pool.prefixes is not None
    kept = {link.block * BLOCK + i for link in cache.pool.prefixes.links() for i in range(BLOCK)}
    for sequence in engine.running:
        (table,) = cache.tables([sequence.id]).blocks
        kept |= {int(table[i // BLOCK]) * BLOCK + i % BLOCK for i in range(cache.length(sequence.id))}
    tokens = cache.storage.tokens  # type: ignore[attr-defined]
    tokens[[slot for slot in range(len(tokens)) if slot not in kept]] = POISON
    states = cache.states
    for state in range(states.num_states):
        if not states.allocator.references(state) and not states.keeps(state):
            cache.storage.states[state] = (POISON,)  # type: ignore[attr-defined]


def weather(seed: int, num_states: int = 0) -> Counter[str]:
    """One storm; what happened in it."""
    rng = np.random.default_rng(seed)
    engine = storm_engine(num_states=num_states)
    sequences: list[Sequence] = []
    for _ in range(90):
        match rng.integers(9):
            case 0 | 1 | 2:
                sequences.append(random_request(engine, rng, len(sequences)))
                engine.add(sequences[-1])
            case 4 if sequences:
                sequences.append(another_sample(engine, sequences[-1], len(sequences)))
                engine.add(sequences[-1])
            case 3 if sequences and rng.integers(2):
                engine.abort(sequences[rng.integers(len(sequences))])
            case _:
                engine.step()
        engine.check()
        poison_free_slots(engine)
    while not engine.idle:
        engine.step()
        engine.check()
        poison_free_slots(engine)
    allocator = engine.runner.cache.allocator
    assert allocator.num_free == allocator.num_blocks
    assert not any(map(allocator.references, range(allocator.num_blocks)))
    slots = engine.runner.cache.states.allocator
    assert slots.num_free == slots.num_blocks
    seen: Counter[str] = Counter()
    for sequence in sequences:
        expected = alone(sequence)
        aborted = sequence.finish_reason == "abort"
        assert sequence.output == (expected[: sequence.num_output] if aborted else expected)
        stats = sequence.stats
        assert sum(stats.accepted_per_position) == stats.accepted <= stats.drafted
        seen.update(
            aborted=aborted,
            preempted=stats.preemptions,
            cached=stats.cached_tokens,
            led=sequence.leader is not None and stats.cached_tokens > 0,
            accepted=stats.accepted,
            chunked=stats.target_passes - stats.rounds > 1,
        )
    return seen


@pytest.mark.parametrize("seeds", thorough_but([range(3)], [range(3), range(3, 7)]), ids=str)
def test_storms_change_no_text_and_leave_nothing_behind(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += weather(seed)
    assert all(seen[event] > 2 for event in ("aborted", "preempted", "cached", "led", "accepted", "chunked")), seen


@pytest.mark.thorough
@pytest.mark.parametrize("num_states", [5, 14, 60])
def test_nor_do_storms_over_states(num_states: int) -> None:
    """With few slots, guesses and sequences wait for each other."""
    seen: Counter[str] = Counter()
    for seed in range(4):
        seen += weather(seed, num_states)
    wanted = ["aborted", "preempted", "accepted", "chunked", *(["cached", "led"] if num_states > 5 else [])]
    assert all(seen[event] > 2 for event in wanted), seen


@pytest.mark.slow
def test_many_storms_change_no_text_and_leave_nothing_behind() -> None:
    for seed in range(100, 600):
        weather(seed)
        weather(seed, num_states=3 + seed % 40)


def test_samples_of_one_prompt_read_it_once() -> None:
    engine = storm_engine(cache_tokens=400)
    params = SamplingParams(temperature=1.0, max_tokens=6, seed=2)
    prompt = list(range(12)) * 3
    sequences = [toy_sequence(engine, prompt, sequence_id=i, params=params, sample=i) for i in range(4)]
    outputs = run_all(engine, sequences)
    assert len({tuple(output) for output in outputs}) > 1
    assert [sequence.stats.cached_tokens for sequence in sequences] == [0, 32, 32, 32]


def test_a_hit_shortens_the_prefill_of_a_later_request() -> None:
    engine = storm_engine(cache_tokens=400)
    first, second = (toy_sequence(engine, [*range(12)] * 3, sequence_id=i) for i in range(2))
    run_all(engine, [first])
    rows = engine.runner.backend.rows_seen  # type: ignore[attr-defined]
    run_all(engine, [second])
    assert second.output == first.output
    assert second.stats.cached_tokens == 32
    assert engine.runner.backend.rows_seen - rows < rows  # type: ignore[attr-defined]


def test_a_drafter_that_reads_hidden_states_sees_every_row_that_is_computed() -> None:
    class Watcher:
        """Asks for a tap and notes which positions it was shown."""

        def __init__(self) -> None:
            self.needs = TargetSignals(taps=(0,))
            self.positions: list[int] = []

        def begin(self, sequence: SequenceView) -> None:
            self.positions = []

        def propose(self, sequences: list[SequenceView], budgets: list[DraftBudget]) -> list[DraftTree]:
            return [DraftTree.empty()] * len(sequences)

        def observe(self, outcomes: list[RoundOutcome]) -> None:
            for outcome in outcomes:
                assert outcome.hidden[0].shape[0] == len(outcome.row_tokens)
                first = outcome.first_position
                self.positions += [first + row for row in outcome.kept_rows]

        def end(self, sequence_id: int) -> None: ...

    watcher = Watcher()
    base = storm_engine(cache_tokens=400)
    engine = Engine(base.runner, watcher, Limits())
    for sequence_id in range(2):
        sequence = toy_sequence(engine, [*range(12)] * 3, sequence_id=sequence_id)
        run_all(engine, [sequence])
        assert sequence.stats.cached_tokens == 32 * sequence_id
        assert watcher.positions == list(range(32 * sequence_id, len(sequence.tokens) - 1))


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine = storm_engine(cache_tokens=4000, limits=Limits(max_rows=16, draft_rows=0))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, size=size).tolist() for size in (600, 20)]
    long, short = (toy_sequence(engine, prompt, sequence_id=i) for i, prompt in enumerate(prompts))
    engine.add(long)
    engine.add(short)
    while not short.finished:
        engine.step()
    assert not long.num_output
    assert engine.runner.cache.length(long.id) > 100
    while not engine.idle:
        engine.step()
    assert long.output == alone(long)


def test_readers_go_on_beside_as_many_decoders_as_rows() -> None:
    engine = storm_engine(cache_tokens=4000, limits=Limits(max_sequences=9, max_rows=8, draft_rows=8))
    params = replace(SamplingParams(temperature=0), max_tokens=500)
    for i in range(8):
        engine.add(toy_sequence(engine, [i], sequence_id=i, params=params))
    engine.step()
    late = toy_sequence(engine, list(range(9)), sequence_id=8, params=replace(params, max_tokens=3))
    engine.add(late)
    for _ in range(40):
        engine.step()
    assert late.finished


def test_prompt_logprobs_are_those_of_the_prompts_own_tokens_whatever_the_chunks() -> None:
    rng = np.random.default_rng(4)
    prompt = rng.integers(0, VOCAB, size=50).tolist()
    logits_of = hashed_logits(VOCAB, 3, order=5, scale=3.0)
    engine = storm_engine(cache_tokens=128, limits=Limits(max_rows=16, draft_rows=4))
    sequences = [toy_sequence(engine, prompt, sequence_id=i) for i in range(3)]
    for sequence in sequences[1:]:
        sequence.params = replace(sequence.params, prompt_logprobs=2)
    run_all(engine, sequences)
    assert sum(sequence.stats.preemptions for sequence in sequences) > 0
    for sequence in sequences[1:]:
        assert [entry.token_id for entry in sequence.prompt_logprobs] == prompt[1:]
        for place, entry in enumerate(sequence.prompt_logprobs, start=1):
            logits = logits_of(tuple(prompt[:place]))
            expected = logits - np.log(np.exp(logits).sum())
            assert entry.logprob == pytest.approx(expected[prompt[place]], abs=1e-4)
            assert list(entry.top) == np.argsort(-expected)[:2].tolist()
    assert sequences[0].prompt_logprobs == []
