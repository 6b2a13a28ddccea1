from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import LogitsOf, ToyBackend, hashed_logits, repeating_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.engine import round as round_module
from headstart.engine.outputs import FinishReason, TokenOrigin
from headstart.engine.schedule import Limits
from headstart.errors import RequestError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.history import TokenHistory
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms

VOCAB = 12
TEXT_DRAFTERS = ["none", "ngram", "prompt-lookup", "suffix", "recycling", "copy", "unigram", "bigram", "random"]
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [4, 4, 4, 4, 4], list(range(10)) * 4]


class Oracle:
    """A drafter that knows the target: guesses what greedy decoding will say, and ``wrong`` beside it."""

    needs = TargetSignals()

    def __init__(self, logits_of: LogitsOf, depth: int, wrong_from: int | None = None) -> None:
        self.logits_of = logits_of
        self.depth = depth
        self.wrong_from = wrong_from

    def begin(self, sequence: SequenceView) -> None: ...

    def end(self, sequence_id: int) -> None: ...

    def observe(self, outcomes: list[RoundOutcome]) -> None: ...

    def propose(self, sequences: list[SequenceView], budgets: list[DraftBudget]) -> list[DraftTree]:
        return [
            self._tree(sequence, min(self.depth, budget.depth), budget.nodes)
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def _tree(self, sequence: SequenceView, depth: int, nodes: int) -> DraftTree:
        right: list[int] = []
        paths = []
        for level in range(depth):
            best = int(self.logits_of((*sequence.tokens, *right)).argmax())
            wrong = (best + 1) % VOCAB
            paths.append([*right, wrong])
            right.append(wrong if self.wrong_from is not None and level >= self.wrong_from else best)
        return DraftTree.from_paths([*paths, right], nodes)


def naive(logits_of: LogitsOf, prompt: list[int], params: SamplingParams, eos: tuple[int, ...] = ()) -> list[int]:
    """Plain decoding, written out: one token at a time from the whole text."""
    transforms = Transforms(params, VOCAB, eos)
    tokens = list(prompt)
    noise = SequenceNoise(params.seed or 0)
    while len(tokens) - len(prompt) < (params.max_tokens or 0):
        history = TokenHistory(prompt, tokens[len(prompt) :]).along()
        logits = torch.tensor(logits_of(tuple(tokens)), dtype=torch.float32)
        tokens.append(transforms.sample(logits, noise, len(tokens), history))
        if tokens[-1] in eos or tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("name", TEXT_DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_says_what_plain_decoding_says(name: str, temperature: float) -> None:
    for seed in range(4):
        logits_of = hashed_logits(VOCAB, seed, order=2, scale=3.0)
        params = SamplingParams(temperature=temperature, max_tokens=30, seed=seed, top_k=5, top_p=0.9)
        engine = toy_engine(ToyBackend(VOCAB, logits_of), name)
        sequences = [toy_sequence(engine, prompt, sequence_id=i, params=params) for i, prompt in enumerate(PROMPTS)]
        assert run_all(engine, sequences) == [naive(logits_of, prompt, params) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.7},
        {"frequency_penalty": 1.5, "presence_penalty": -1.0},
        {"logit_bias": {3: 4.0, 1: -100.0}},
        {"allowed_token_ids": (2, 4, 6)},
        {"banned_token_ids": (2, 4, 6), "min_p": 0.1},
        {"min_tokens": 12, "stop_token_ids": (5, 6)},
        {"banned_sequences": tuple((a, b) for a in range(VOCAB) for b in range(VOCAB) if (a + b) % 3 == 0)},
        {"banned_sequences": ((4,), (1, 2, 3), (2, 3, 1), (5, 5)), "frequency_penalty": 0.3},
    ],
    ids=lambda changes: "+".join(changes),
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_transforms_follow_each_path(changes: dict[str, object], temperature: float) -> None:
    logits_of = hashed_logits(VOCAB, 3, order=2)
    params = replace(SamplingParams(temperature=temperature, max_tokens=30, seed=5), **changes)
    for drafter in (Oracle(logits_of, 4), "suffix"):
        engine = toy_engine(ToyBackend(VOCAB, logits_of, eos=(7,)), drafter)
        sequences = [toy_sequence(engine, prompt, sequence_id=i, params=params) for i, prompt in enumerate(PROMPTS)]
        assert run_all(engine, sequences) == [naive(logits_of, prompt, params, eos=(7,)) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_banned_sequence_is_completed_by_the_output_alone_and_never(temperature: float) -> None:
    """A guess that would complete one is refused, whatever the tree; what the prompt began does not count."""
    period = [1, 2, 3, 4]
    backend = ToyBackend(VOCAB, repeating_logits(VOCAB, period))
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=1, banned_sequences=((2, 3), (4, 1, 2)))
    sequences = []
    for drafter in ("none", "ngram", Oracle(repeating_logits(VOCAB, period), 6)):
        engine = toy_engine(backend, drafter)
        sequences.append(toy_sequence(engine, [*period * 4, 1, 2], params=params))
        run_all(engine, sequences[-1:])
    said = sequences[0].output
    assert said[0] == 3  # the 2 before it is the prompt's
    pairs, triples = set(pairwise(said)), set(zip(said, said[1:], said[2:], strict=False))
    assert (2, 3) not in pairs
    assert (4, 1, 2) not in triples
    assert (4, 1) in pairs
    assert [sequence.output for sequence in sequences[1:]] == [said] * 2


@pytest.mark.parametrize("wrong_from", [None, 0, 2])
def test_counts_add_up(wrong_from: int | None) -> None:
    logits_of = hashed_logits(VOCAB, 1)
    engine = toy_engine(ToyBackend(VOCAB, logits_of), Oracle(logits_of, 4, wrong_from))
    sequence = toy_sequence(engine, [1, 2, 3])
    (output,) = run_all(engine, [sequence])
    stats = sequence.stats
    assert output == naive(logits_of, [1, 2, 3], sequence.params)
    assert stats.tokens == len(output) == 24
    assert stats.tokens == stats.accepted + stats.rounds
    assert stats.target_passes == stats.rounds + 1
    assert stats.mean_accepted_length == {None: 24 / 5, 0: 1.0, 2: 3.0}[wrong_from]
    assert stats.accepted == sum(stats.accepted_per_position)
    assert all(a <= d for a, d in zip(stats.accepted_per_position, stats.drafted_per_position, strict=True))
    assert all(a >= b for a, b in zip(stats.accepted_per_position, stats.accepted_per_position[1:], strict=False))
    assert sequence.origins.count(TokenOrigin.ACCEPTED) == stats.accepted
    if wrong_from == 0:
        assert set(sequence.origins) <= {TokenOrigin.CORRECTED, TokenOrigin.PLAIN}


def test_plain_decoding_makes_one_token_a_round() -> None:
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB)))
    sequence = toy_sequence(engine, [1, 2, 3])
    run_all(engine, [sequence])
    assert (sequence.stats.rounds, sequence.stats.mean_accepted_length, sequence.stats.drafted) == (24, 1.0, 0)
    assert set(sequence.origins) == {TokenOrigin.PLAIN}


def test_an_end_of_sequence_token_inside_an_accepted_run_discards_the_rest() -> None:
    logits_of = repeating_logits(VOCAB, [1, 2, 3, 4, 5, 6])
    engine = toy_engine(ToyBackend(VOCAB, logits_of, eos=(4,)), Oracle(logits_of, 5))
    sequence = toy_sequence(engine, [6])
    assert run_all(engine, [sequence]) == [[1, 2, 3, 4]]
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.stats.rounds == 1
    assert sequence.stats.accepted == 4
    ignoring = toy_sequence(engine, [6], params=SamplingParams(temperature=0, max_tokens=7, ignore_eos=True))
    assert run_all(engine, [ignoring]) == [[1, 2, 3, 4, 5, 6, 1]]


def test_a_stop_token_ends_the_sequence_and_is_named() -> None:
    logits_of = repeating_logits(VOCAB, [1, 2, 3, 4])
    engine = toy_engine(ToyBackend(VOCAB, logits_of), Oracle(logits_of, 5))
    sequence = toy_sequence(engine, [4], params=SamplingParams(temperature=0, stop_token_ids=(3,)))
    assert run_all(engine, [sequence]) == [[1, 2, 3]]
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, 3)


def test_near_the_end_of_the_context_the_tree_shrinks_and_then_all_stops() -> None:
    logits_of = hashed_logits(VOCAB, 2)
    params = SamplingParams(temperature=0, max_tokens=None)
    backend = ToyBackend(VOCAB, logits_of, max_positions=40)
    engine = toy_engine(backend, Oracle(logits_of, 6), limits=Limits(max_context=40), cache_tokens=40)
    sequence = toy_sequence(engine, list(range(10)), params=params)
    (output,) = run_all(engine, [sequence])
    assert output == naive(logits_of, list(range(10)), replace(params, max_tokens=30))
    assert sequence.finish_reason is FinishReason.LENGTH


def test_chunks_batches_and_preemption_change_nothing() -> None:
    logits_of = hashed_logits(VOCAB, 8, order=4)
    prompts = [np.random.default_rng(i).integers(0, VOCAB, size=5 + 7 * i).tolist() for i in range(7)]
    params = SamplingParams(temperature=0.7, max_tokens=25, seed=11)
    expected = [naive(logits_of, prompt, params) for prompt in prompts]
    for limits, cache_tokens in [
        (Limits(), 4096),
        (Limits(max_rows=5, max_sequences=3), 4096),
        (Limits(draft_rows=0), 4096),
        (Limits(), 120),
    ]:
        engine = toy_engine(
            ToyBackend(VOCAB, logits_of), Oracle(logits_of, 4), limits=limits, cache_tokens=cache_tokens
        )
        sequences = [toy_sequence(engine, prompt, sequence_id=i, params=params) for i, prompt in enumerate(prompts)]
        assert run_all(engine, sequences) == expected
        preempted = sum(sequence.stats.preemptions for sequence in sequences)
        assert (preempted > 0) == (cache_tokens == 120)


def test_a_sequence_that_outgrows_the_whole_cache_stops_cleanly() -> None:
    logits_of = hashed_logits(VOCAB, 8)
    engine = toy_engine(ToyBackend(VOCAB, logits_of), cache_tokens=16)
    sequence = toy_sequence(engine, [1, 2, 3], params=SamplingParams(temperature=0, max_tokens=200))
    (output,) = run_all(engine, [sequence])
    assert sequence.finish_reason is FinishReason.LENGTH
    assert output == naive(logits_of, [1, 2, 3], replace(sequence.params, max_tokens=len(output)))
    assert len(output) == 14


def test_bad_logits_end_their_own_sequence_only() -> None:
    good = hashed_logits(VOCAB, 8, order=3)

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        return np.full(VOCAB, np.nan) if context[0] == 9 and len(context) > 6 else good(context)

    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=20, seed=1)
        engine = toy_engine(ToyBackend(VOCAB, logits_of), "ngram")
        sequences = [toy_sequence(engine, [i, 1, 2], sequence_id=i, params=params) for i in (8, 9, 10)]
        outputs = run_all(engine, sequences)
        assert [outputs[0], outputs[2]] == [naive(good, [8, 1, 2], params), naive(good, [10, 1, 2], params)]
        assert sequences[1].finish_reason is FinishReason.ERROR
        assert "not a finite number" in (sequences[1].error or "")
        assert len(outputs[1]) == 4


def test_a_request_can_limit_or_refuse_speculation() -> None:
    logits_of = hashed_logits(VOCAB, 8)
    engine = toy_engine(ToyBackend(VOCAB, logits_of), Oracle(logits_of, 6))
    wishes = [SpeculationParams(enabled=False), SpeculationParams(draft_tokens=2), SpeculationParams(tree_nodes=1)]
    sequences = [toy_sequence(engine, [1, 2], sequence_id=i, speculation=wish) for i, wish in enumerate(wishes)]
    outputs = run_all(engine, sequences)
    assert outputs == [naive(logits_of, [1, 2], sequences[0].params)] * 3
    assert sequences[0].stats.drafted == 0
    assert len(sequences[1].stats.drafted_per_position) == 2
    assert sequences[2].stats.drafted <= sequences[2].stats.rounds


def test_requests_that_can_never_be_served_are_refused_at_the_edge() -> None:
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB)), limits=Limits(max_context=10), cache_tokens=64)
    for prompt, params, match in [
        ([], SamplingParams(), "no tokens"),
        (list(range(10)), SamplingParams(), "10 tokens and the context holds 10"),
        ([VOCAB], SamplingParams(), "token 12"),
        ([-1], SamplingParams(), "token -1"),
    ]:
        with pytest.raises(RequestError, match=match):
            engine.add(toy_sequence(engine, prompt, params=params))
    assert engine.idle


def test_an_aborted_sequence_leaves_nothing_behind() -> None:
    logits_of = hashed_logits(VOCAB, 8)
    engine = toy_engine(ToyBackend(VOCAB, logits_of), Oracle(logits_of, 2), limits=Limits(max_sequences=2))
    sequences = [toy_sequence(engine, [i, 1, 2], sequence_id=i) for i in range(3)]
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(3):
        engine.step()
    engine.abort(sequences[0])
    engine.abort(sequences[2])
    while not engine.idle:
        engine.step()
    engine.check()
    assert sequences[0].finish_reason is sequences[2].finish_reason is FinishReason.ABORT
    assert sequences[1].output == naive(logits_of, [1, 1, 2], sequences[1].params)
    assert sequences[0].output == naive(logits_of, [0, 1, 2], sequences[0].params)[: len(sequences[0].output)]


def test_reading_the_prompt_is_the_drafters_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Reader(Oracle):
        def observe(self, outcomes: list[RoundOutcome]) -> None:
            nonlocal now
            now += sum(len(outcome.row_tokens) for outcome in outcomes if not outcome.committed)

    monkeypatch.setattr(round_module.time, "perf_counter", lambda: now)
    logits_of = hashed_logits(VOCAB)
    engine = toy_engine(ToyBackend(VOCAB, logits_of), Reader(logits_of, 2))
    sequence = toy_sequence(engine, PROMPTS[0], params=SamplingParams(temperature=0, max_tokens=4))
    run_all(engine, [sequence])
    stats = sequence.stats
    assert stats.draft_prefill_seconds == len(PROMPTS[0]) - 1
    assert stats.draft_seconds == stats.prefill_seconds == stats.target_seconds == 0
