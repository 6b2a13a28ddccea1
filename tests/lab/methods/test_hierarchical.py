from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from model_toys import LayeredToy, blurred, coupled_texts, greedy_texts, memoised, model_context, model_engine
from text_laws import CROWD, START, opposed_tables, p_value, random_table, sample_texts
from thinning import thorough_but
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, table_logits, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.drafting.registry import create_drafter
from headstart.drafting.second_models.draft_law import DraftLaw, DraftLawOptions
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError
from headstart.passes.draft_tree import DraftTree, TreeLaw
from headstart.passes.runner import ModelRunner
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.hierarchical.drafter import HierarchicalDrafter, round_noise

VOCAB = 10
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, size=1 + 9 * i % 31).tolist() for i in range(9)]
WISHES = [
    SpeculationParams(),
    SpeculationParams(draft_tokens=2),
    SpeculationParams(enabled=False),
    SpeculationParams(tree_nodes=1),
]
INNER: dict[str, dict[str, object]] = {
    "guesses": {"inner": "ngram"},
    "draws": {"inner": "draft-model", "inner_options": {"model": "tiny", "draft_tokens": 2}},
    "tree of draws": {"inner": "multi-draft", "inner_options": {"model": "tiny", "branching": (2, 2)}},
    "first layers": {"inner": "early-exit"},
    "nested": {
        "inner": "hierarchical",
        "inner_options": {"model": "tiny", "inner": "bigram", "inner_options": {"sample": True}, "draft_tokens": 2},
    },
}
RULES = (VerifyRule.AUTO, VerifyRule.REJECTION)
inners = pytest.mark.parametrize("inner", INNER)
few_inners = pytest.mark.parametrize("inner", thorough_but(["guesses"], INNER))


def drafts_of(small: LogitsOf, tiny: LogitsOf, vocab_size: int = VOCAB) -> dict[str, ToyBackend]:
    return {"small": LayeredToy(vocab_size, small, tiny), "tiny": ToyBackend(vocab_size, tiny)}


@inners
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("limits", "target_tokens", "options"),
    [
        (Limits(), 4096, {}),
        (Limits(max_sequences=3, max_rows=20, draft_rows=5), 4096, {"draft_tokens": 9}),
        (Limits(), 160, {"draft_tokens": 3}),
        (Limits(), 4096, {"cache_tokens": 64, "min_confidence": 0.3}),
    ],
    ids=["plenty", "small passes", "preemption", "small draft cache"],
)
def test_greedy_texts_are_those_of_plain_decoding(
    inner: str, seed: int, limits: Limits, target_tokens: int, options: dict[str, object]
) -> None:
    logits_of = memoised(hashed_logits(VOCAB, seed, order=3))
    target = ToyBackend(VOCAB, logits_of)
    engine = model_engine(
        target,
        "hierarchical",
        drafts_of(blurred(logits_of, seed, 1.0), blurred(logits_of, seed + 1, 1.0)),
        limits=limits,
        target_tokens=target_tokens,
        model="small",
        **INNER[inner],
        **options,
    )
    assert greedy_texts(engine, PROMPTS, WISHES) == greedy_texts(model_engine(target, "none"), PROMPTS, WISHES)
    assert isinstance(engine.drafter, HierarchicalDrafter)
    cache = engine.drafter._model.runner.cache
    cache.check()
    assert cache.allocator.num_free == cache.allocator.num_blocks


@few_inners
def test_coupled_texts_do_not_depend_on_the_draft(inner: str) -> None:
    """And the draft is the one of the draft model without an inner drafter: q's own coupled draws."""
    logits_of = hashed_logits(VOCAB, 5, order=3)
    target = ToyBackend(VOCAB, logits_of)
    drafts = drafts_of(blurred(logits_of, 1, 1.0), blurred(logits_of, 2, 1.0))
    texts, accepted = [], []
    for name, options in (
        ("none", {}),
        ("draft-model", {"model": "small"}),
        ("hierarchical", {"model": "small"} | INNER[inner]),
    ):
        engine = model_engine(target, name, drafts, **options)
        said, stats = coupled_texts(engine, PROMPTS, temperature=0.9, presence_penalty=0.4)
        texts.append(said)
        accepted.append([each.accepted_per_position for each in stats])
    assert texts[0] == texts[1] == texts[2]
    assert accepted[1] == accepted[2]


@pytest.mark.thorough
@few_inners
@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_texts_follow_the_targets_law(inner: str, count: int) -> None:
    target, small = opposed_tables()
    tiny = random_table(4, 3)
    engine = model_engine(
        ToyBackend(4, table_logits(target)),
        "hierarchical",
        drafts_of(table_logits(small), table_logits(tiny), 4),
        limits=CROWD,
        model="small",
        draft_tokens=3,
        **INNER[inner],
    )
    texts = sample_texts(engine, count, 3)
    assert p_value(texts, target) > 1e-3
    assert p_value(texts, small) < 1e-12


@few_inners
def test_drafts_follow_the_draft_models_law(inner: str) -> None:
    small, tiny = opposed_tables()
    runner = ModelRunner(ToyBackend(4, table_logits(small)), 256, block_size=8)
    drafter = create_drafter(
        "hierarchical",
        model_context(runner, drafts_of(table_logits(small), table_logits(tiny), 4)),
        model="small",
        cache_tokens=600 * 32,
        draft_tokens=3,
        **INNER[inner],
    )
    sequences = [
        ToySequence(i, [START], noise=SequenceNoise(i), speculation=SpeculationParams(verify=RULES[i % 2]))
        for i in range(600)
    ]
    trees = drafter.propose(sequences, [DraftBudget(3, 3)] * 600)
    drafts = [tuple(tree.tokens.tolist()) for tree in trees]
    assert p_value(drafts, small) > 1e-3
    assert p_value(drafts, tiny) < 1e-12


def test_drafts_carry_the_law_they_were_drawn_from() -> None:
    logits_of = hashed_logits(VOCAB, 6)
    runner = ModelRunner(ToyBackend(VOCAB, logits_of), 256, block_size=8)
    for inner in INNER.values():
        context = model_context(runner, drafts_of(logits_of, blurred(logits_of, 1, 1.0)))
        drafter = create_drafter("hierarchical", context, model="small", top_k=4, **inner)
        sequence = ToySequence(1, [1, 2, 3], params=SamplingParams(temperature=0.7, frequency_penalty=1.5))
        runner.cache.add(1)
        (tree,) = drafter.propose([sequence], [DraftBudget(8, 8)])
        runner.cache.remove(1)
        assert tree.law is TreeLaw.SAMPLED
        assert len(tree) == 5
        law = DraftLaw(sequence, DraftLawOptions(top_k=4), VOCAB, ())
        for i in range(5):
            path = tree.tokens[:i].tolist()
            logits = torch.tensor(logits_of((1, 2, 3, *path)), dtype=torch.float32)
            assert torch.equal(tree.draft_probs[i], law.probs(logits, path))


def test_a_good_inner_drafter_saves_passes_of_the_draft_model() -> None:
    """A perfect one: root and 4 guesses of it make a draft of 5 tokens in one pass instead of five."""
    logits_of = hashed_logits(VOCAB, 3)
    target = ToyBackend(VOCAB, logits_of)
    drafts = drafts_of(logits_of, logits_of)
    engine = model_engine(
        target, "hierarchical", drafts, model="small", inner="draft-model", inner_options={"model": "tiny"}
    )
    sequence = toy_sequence(engine, [1, 2, 3], params=SamplingParams(temperature=0, max_tokens=30))
    run_all(engine, [sequence])
    assert sequence.stats.rounds == 5
    assert sequence.stats.acceptance_rate == 1
    assert isinstance(engine.drafter, HierarchicalDrafter)
    assert engine.drafter._model.runner.passes == 5


def test_inner_rounds_of_different_rounds_share_no_noise() -> None:
    noise = SequenceNoise(3, 1)
    rounds = [round_noise(noise, root) for root in (4, 5)]
    drawn = [one.position_exponentials(9, 8).tolist() for one in (*rounds, noise, noise.nested())]
    drawn += [one.exponentials(Stream.DRAFT, 9, 0, 8).tolist() for one in (*rounds, noise, noise.nested())]
    assert len({number for row in drawn for number in row}) == 8 * 8
    assert round_noise(noise, 4).position_exponentials(9, 8).tolist() == drawn[0]
    assert round_noise(SequenceNoise(3, 2), 4).position_exponentials(9, 8).tolist() != drawn[0]


class Recorder:
    """An inner drafter that guesses nothing and checks what it is told."""

    needs = TargetSignals()

    def __init__(self) -> None:
        self.known: dict[int, list[int]] = {}
        self.begun: Counter[int] = Counter()
        self.noise: dict[int, set[float]] = {}
        """id -> a number of each noise that was handed over."""

    def begin(self, sequence: SequenceView) -> None:
        assert sequence.id not in self.known
        self.known[sequence.id] = list(sequence.tokens)
        self.begun[sequence.id] += 1

    def propose(self, sequences: list[SequenceView], budgets: list[DraftBudget]) -> list[DraftTree]:
        for sequence in sequences:
            assert self.known[sequence.id] == sequence.tokens
            self.noise.setdefault(sequence.id, set()).add(sequence.noise.uniform(Stream.ACCEPT, 7, 0))
        return [DraftTree.empty()] * len(sequences)

    def observe(self, outcomes: list[RoundOutcome]) -> None:
        for outcome in outcomes:
            known = self.known[outcome.sequence.id]
            assert outcome.sequence.tokens[: len(known)] == known
            read = outcome.row_tokens.tolist()
            assert outcome.sequence.tokens[outcome.first_position :][: len(read)] == read
            assert len(outcome.sequence.tokens) == outcome.first_position + len(read) + 1
            known[:] = outcome.sequence.tokens

    def end(self, sequence_id: int) -> None:
        del self.known[sequence_id]


class RewindingRecorder(Recorder):
    def rewind(self, sequence: SequenceView) -> None:
        assert self.known[sequence.id][: len(sequence.tokens)] == sequence.tokens
        self.known[sequence.id] = list(sequence.tokens)


@pytest.mark.parametrize("recorder", [Recorder, RewindingRecorder])
def test_the_inner_drafter_always_knows_the_text_and_the_draft(recorder: type[Recorder]) -> None:
    logits_of = hashed_logits(VOCAB, 4, order=3)
    small = blurred(logits_of, 1, 1.0)
    target = ToyBackend(VOCAB, logits_of)
    engine = model_engine(target, "hierarchical", drafts_of(small, small), model="small")
    assert isinstance(engine.drafter, HierarchicalDrafter)
    inner = engine.drafter._inner = recorder()
    sequences = [
        toy_sequence(engine, prompt, sequence_id=i, params=SamplingParams(max_tokens=30, seed=i))
        for i, prompt in enumerate(PROMPTS)
    ]
    run_all(engine, sequences)
    assert inner.known == {}
    assert inner.begun.keys() == set(range(len(PROMPTS)))
    for sequence in sequences:
        # Every round has an inner noise of its own; the last one guesses nothing if a single token is left.
        assert len(inner.noise[sequence.id]) in (sequence.stats.rounds, sequence.stats.rounds - 1)
        assert sequence.noise.uniform(Stream.ACCEPT, 7, 0) not in inner.noise[sequence.id]
    if recorder is RewindingRecorder:
        assert set(inner.begun.values()) == {1}
    else:
        assert max(inner.begun.values()) > 1


def test_guesses_that_the_draft_model_does_not_know_are_never_its_draws() -> None:
    logits_of = memoised(hashed_logits(VOCAB, 1, order=1))
    target = ToyBackend(VOCAB, logits_of)
    small = ToyBackend(4, lambda context: logits_of(context)[:4])
    engine = model_engine(target, "hierarchical", {"small": small}, model="small", inner="random")
    params = SamplingParams(max_tokens=20, logit_bias={token: -20.0 for token in range(4, VOCAB)})
    sequences = [toy_sequence(engine, [1], sequence_id=i, params=replace(params, seed=i)) for i in range(8)]
    outputs = run_all(engine, sequences)
    assert all(token < 4 for output in outputs for token in output)
    assert all(sequence.stats.acceptance_rate == 1 for sequence in sequences)


def test_near_the_end_of_the_draft_models_context() -> None:
    logits_of = hashed_logits(VOCAB, 3)
    target = ToyBackend(VOCAB, logits_of)
    small = ToyBackend(VOCAB, logits_of, max_positions=20)
    plain = model_engine(target, "none")
    params = SamplingParams(temperature=0, max_tokens=40)
    expected = run_all(plain, [toy_sequence(plain, [1, 2, 3], params=params)])
    engine = model_engine(target, "hierarchical", {"small": small}, model="small", inner="suffix")
    sequence = toy_sequence(engine, [1, 2, 3], params=params)
    assert run_all(engine, [sequence]) == expected
    assert sequence.stats.accepted == 15


class Tapping(Recorder):
    needs = TargetSignals(taps=(0,))


def test_inner_drafters_must_do_without_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    made = "headstart_lab.methods.hierarchical.drafter.create_drafter"
    monkeypatch.setattr(made, lambda *args, **options: Tapping())
    runner = ModelRunner(ToyBackend(VOCAB, hashed_logits(VOCAB)), 64, block_size=8)
    context = model_context(runner, {"small": runner.backend})
    with pytest.raises(ConfigError, match="reads hidden states"):
        HierarchicalDrafter(context, HierarchicalDrafter.Options(model="small", inner="eagle"))


def test_bad_options_are_refused() -> None:
    runner = ModelRunner(ToyBackend(VOCAB, hashed_logits(VOCAB)), 64, block_size=8)
    context = model_context(runner, {"small": runner.backend})
    for options, message in (
        ({"inner": "psychic"}, "no drafter 'psychic'"),
        ({"inner_nodes": 0}, "inner_nodes is 0"),
        ({"inner_options": {"wrong": 1}}, "no option 'wrong'"),
        ({"inner_options": "fast"}, "'fast'; it must be a dictionary"),
        ({"inner": "draft-model"}, "name it in inner_options"),
    ):
        with pytest.raises(ConfigError, match=message):
            create_drafter("hierarchical", context, model="small", **options)
