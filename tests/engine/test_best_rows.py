"""Rows of which no more than the best token is asked, where a backend finds that by itself."""

from __future__ import annotations

import numpy as np
import pytest
from toys import LogitsOf, ToyBackend, ToyStorage, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import SpeculationParams
from headstart.engine.outputs import FinishReason
from headstart.engine.trace import Trace
from headstart.passes.batch import PassBatch, PassOutput
from headstart.sampling.params import SamplingParams
from headstart_lab.workbench import Contender, Workbench

VOCAB = 12
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [4, 4, 4, 4, 4], list(range(10)) * 4]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


class FindingToy(ToyBackend):
    """Finds best tokens by itself, and counts how many rows were asked for what."""

    finds_best = True

    def __init__(self, vocab_size: int, logits_of: LogitsOf) -> None:
        super().__init__(vocab_size, logits_of)
        self.best_rows = self.logit_rows = 0

    def forward(self, batch: PassBatch, storage: ToyStorage) -> PassOutput:
        self.best_rows += len(batch.best_rows)
        self.logit_rows += len(batch.logit_rows)
        return super().forward(batch, storage)


@pytest.mark.parametrize(
    ("drafter", "needs_logits"),
    [("none", False), ("ngram", False), ("suffix", False), ("lookahead", False), ("auto", False), ("recycling", True)],
)
def test_greedy_texts_are_those_of_whole_logits(drafter: str, needs_logits: bool) -> None:
    for seed in range(3):
        logits_of = hashed_logits(VOCAB, seed, order=2, scale=3.0)
        texts = []
        for backend in (FindingToy(VOCAB, logits_of), ToyBackend(VOCAB, logits_of)):
            engine = toy_engine(backend, drafter)
            texts.append(run_all(engine, [toy_sequence(engine, p, sequence_id=i) for i, p in enumerate(PROMPTS)]))
            if isinstance(backend, FindingToy):
                assert (backend.logit_rows > 0) == needs_logits
                assert (backend.best_rows > 0) != needs_logits
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7, "seed": 3},
        {"logprobs": 0},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.5},
        {"logit_bias": {3: 2.0}},
        {"allowed_token_ids": (1, 2, 3)},
        {"banned_token_ids": (1,)},
        {"banned_sequences": ((1, 2),)},
        {"min_tokens": 5},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_requests_that_look_at_more_get_logits(changes: dict[str, object]) -> None:
    logits_of = hashed_logits(VOCAB, 1, order=2)
    params = SamplingParams(**{"temperature": 0, "max_tokens": 10, **changes})
    texts = []
    for backend in (FindingToy(VOCAB, logits_of), ToyBackend(VOCAB, logits_of)):
        engine = toy_engine(backend, "ngram")
        sequences = [
            toy_sequence(engine, PROMPTS[0], sequence_id=0, params=params),
            toy_sequence(engine, PROMPTS[3], sequence_id=1, params=GREEDY),
        ]
        texts.append((run_all(engine, sequences), sequences[0].logprobs))
        if isinstance(backend, FindingToy):
            assert backend.best_rows > 0  # the other sequence's
            assert backend.logit_rows > 0
    assert texts[0] == texts[1]


@pytest.mark.parametrize("lossy", [{"lenience": 0.5}, {"typical": 0.1}], ids=["lenience", "typical"])
def test_lossy_rules_get_logits(lossy: dict[str, float]) -> None:
    backend = FindingToy(VOCAB, hashed_logits(VOCAB, 1, order=2))
    engine = toy_engine(backend, "ngram")
    run_all(engine, [toy_sequence(engine, PROMPTS[0], speculation=SpeculationParams(**lossy))])
    assert backend.best_rows == 0


def test_a_trace_gets_logits() -> None:
    backend = FindingToy(VOCAB, hashed_logits(VOCAB, 1, order=2))
    engine = toy_engine(backend, "ngram")
    sequence = toy_sequence(engine, PROMPTS[0])
    sequence.trace = Trace()
    run_all(engine, [sequence])
    assert backend.best_rows == 0
    assert len(sequence.trace.rounds) == sequence.stats.rounds


def test_a_row_without_a_best_token_ends_its_own_sequence_only() -> None:
    good = hashed_logits(VOCAB, 8, order=3)

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        return np.full(VOCAB, np.nan) if context[0] == 9 and len(context) > 6 else good(context)

    engine = toy_engine(FindingToy(VOCAB, logits_of), "ngram")
    sequences = [toy_sequence(engine, [i, 1, 2], sequence_id=i) for i in (8, 9, 10)]
    outputs = run_all(engine, sequences)
    assert [len(output) for output in outputs] == [24, 4, 24]
    assert sequences[1].finish_reason is FinishReason.ERROR
    assert "not a finite number" in (sequences[1].error or "")


def test_who_watches_sees_logits_and_changes_nothing() -> None:
    logits_of = hashed_logits(VOCAB, 2, order=2)
    texts = []
    for watched in (False, True):
        bench = Workbench(FindingToy(VOCAB, logits_of), max_context=200)
        sequence = bench.sequence(PROMPTS[0], GREEDY)
        seen = 0

        def watch(span, cached, logits):  # type: ignore[no-untyped-def]
            nonlocal seen
            seen += len(logits)
            text = sequence.tokens[:cached]  # noqa: B023
            if len(logits):
                np.testing.assert_array_equal(logits[0], logits_of((*text, span.tokens[0])).astype(np.float32))

        engine = bench.open(Contender.parse("ngram"))
        if watched:
            with bench.runner.watched(watch):
                bench.decode(engine, sequence)
            assert seen == sequence.stats.rounds + sequence.stats.drafted
        else:
            bench.decode(engine, sequence)
        assert bench.backend.best_rows == sequence.stats.rounds + sequence.stats.drafted
        texts.append(sequence.output)
    assert texts[0] == texts[1]
