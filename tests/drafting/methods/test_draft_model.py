from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from model_toys import (
    LayeredToy,
    ToyTokenizer,
    blurred,
    coupled_texts,
    greedy_texts,
    memoised,
    model_context,
    model_engine,
)
from text_laws import CROWD, opposed_tables, p_value, sample_texts
from thinning import thorough_but
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, table_logits, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.context import DraftContext, LoadedModel
from headstart.drafting.methods.draft_model.drafter import DraftModelDrafter
from headstart.drafting.registry import create_drafter
from headstart.drafting.second_models.draft_law import DraftLaw, DraftLawOptions
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError
from headstart.passes.draft_tree import TreeLaw
from headstart.passes.runner import ModelRunner
from headstart.sampling.params import SamplingParams
from headstart_lab.theory.formulas import expected_tokens

VOCAB = 10
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, size=1 + 9 * i % 31).tolist() for i in range(9)]
WISHES = [
    SpeculationParams(),
    SpeculationParams(draft_tokens=2),
    SpeculationParams(enabled=False),
    SpeculationParams(tree_nodes=1),
]
SMALL = {"model": "small"}


def drafter_of(engine: Engine) -> DraftModelDrafter:
    assert isinstance(engine.drafter, DraftModelDrafter)
    return engine.drafter


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("limits", "target_tokens", "options"),
    [
        (Limits(), 4096, {}),
        (Limits(max_sequences=3, max_rows=20, draft_rows=5), 4096, {"draft_tokens": 9}),
        (Limits(), 160, {"draft_tokens": 3}),
        (Limits(), 4096, {"cache_tokens": 64}),
        (Limits(), 4096, {"min_confidence": 0.4}),
    ],
    ids=["plenty", "small passes", "preemption", "small draft cache", "early ends"],
)
def test_greedy_texts_are_those_of_plain_decoding(
    seed: int, limits: Limits, target_tokens: int, options: dict[str, object]
) -> None:
    logits_of = memoised(hashed_logits(VOCAB, seed, order=3))
    target, small = ToyBackend(VOCAB, logits_of), ToyBackend(VOCAB, blurred(logits_of, seed, 1.0))
    engine = model_engine(
        target, "draft-model", {"small": small}, limits=limits, target_tokens=target_tokens, **SMALL, **options
    )
    plain = greedy_texts(model_engine(target, "none"), PROMPTS, [SpeculationParams()])
    assert greedy_texts(engine, PROMPTS, WISHES) == plain
    draft_cache = drafter_of(engine)._model.runner.cache
    draft_cache.check()
    assert draft_cache.allocator.num_free == draft_cache.allocator.num_blocks


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.8, "frequency_penalty": 0.5}, {"temperature": 0.6, "top_k": 4}])
def test_coupled_texts_do_not_depend_on_the_draft(changes: dict[str, object]) -> None:
    logits_of = hashed_logits(VOCAB, 5, order=3)
    target, small = ToyBackend(VOCAB, logits_of), ToyBackend(VOCAB, blurred(logits_of, 5, 1.0))
    plain, _ = coupled_texts(model_engine(target, "none"), PROMPTS, **changes)
    texts, stats = coupled_texts(model_engine(target, "draft-model", {"small": small}, **SMALL), PROMPTS, **changes)
    assert texts == plain
    assert sum(each.accepted for each in stats) > 60


LAW_CASES: dict[str, tuple[dict[str, object], VerifyRule]] = {
    "block": ({"draft_tokens": 3}, VerifyRule.AUTO),
    "algorithm 1": ({"draft_tokens": 2}, VerifyRule.REJECTION),
    "another law": ({"draft_tokens": 2, "temperature": 0.5, "top_k": 2}, VerifyRule.AUTO),
    "argmax": ({"draft_tokens": 2, "temperature": 0.0}, VerifyRule.AUTO),
    "early ends": ({"draft_tokens": 3, "min_confidence": 0.6}, VerifyRule.AUTO),
}


@pytest.mark.parametrize("name", thorough_but(["block"], LAW_CASES))
@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_texts_follow_the_targets_law(name: str, count: int) -> None:
    options, rule = LAW_CASES[name]
    target, small = opposed_tables()
    engine = model_engine(
        ToyBackend(4, table_logits(target)),
        "draft-model",
        {"small": ToyBackend(4, table_logits(small))},
        limits=CROWD,
        **SMALL,
        **options,
    )
    texts = sample_texts(engine, count, 3, speculation=SpeculationParams(verify=rule))
    assert p_value(texts, target) > 1e-3
    assert p_value(texts, small) < 1e-12


@pytest.mark.parametrize("gamma", thorough_but([1], [1, 4]))
def test_tokens_a_round_are_those_of_the_papers_formula(gamma: int) -> None:
    """E = (1 - alpha^(gamma + 1)) / (1 - alpha) where all positions accept alike (Leviathan et al. 2023, eq. 1)."""
    target, small = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.3, 0.1, 0.4])
    alpha = float(np.minimum(target, small).sum())
    engine = model_engine(
        ToyBackend(4, lambda context: np.log(target)),
        "draft-model",
        {"small": ToyBackend(4, lambda context: np.log(small))},
        limits=CROWD,
        draft_tokens=gamma,
        **SMALL,
    )
    # The last round of a sequence is cut by max_tokens, so only rounds before it are counted.
    length, rounds = 60, []
    sequences = [
        toy_sequence(
            engine,
            [0],
            sequence_id=i,
            params=SamplingParams(max_tokens=length, seed=i),
            speculation=SpeculationParams(verify=VerifyRule.REJECTION),
        )
        for i in range(24)
    ]
    for sequence in sequences:
        engine.add(sequence)
    while not engine.idle:
        before = {sequence.id: sequence.num_output for sequence in sequences}
        for sequence in engine.step():
            grown = sequence.num_output - before[sequence.id]
            if grown and before[sequence.id] + gamma + 1 < length:
                rounds.append(grown)
    error = np.std(rounds) / np.sqrt(len(rounds))
    assert np.mean(rounds) == pytest.approx(expected_tokens(alpha, gamma), abs=3.5 * error)
    assert error < 0.07


def spied(logits_of: LogitsOf, **options: object) -> tuple[Engine, ToyBackend]:
    small = ToyBackend(VOCAB, logits_of)
    return model_engine(ToyBackend(VOCAB, logits_of), "draft-model", {"small": small}, **SMALL, **options), small


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.8, logit_bias={4: 2.0}),
        SamplingParams(seed=1, frequency_penalty=1.5, presence_penalty=-0.5, min_tokens=25, stop_token_ids=(3,)),
        SamplingParams(seed=2, temperature=0.7, top_k=4, top_p=0.9, banned_token_ids=(1, 2)),
        SamplingParams(seed=3, banned_sequences=tuple((a, b) for a in range(5) for b in range(5))),
    ],
    ids=["greedy", "greedy with penalties", "penalties", "truncation", "banned sequences"],
)
def test_a_perfect_draft_is_accepted_whole(params: SamplingParams) -> None:
    """So the draft's law is the target's, transforms along the path and all."""
    engine, _ = spied(hashed_logits(VOCAB, 3), draft_tokens=4)
    sequence = toy_sequence(engine, [1, 2, 3], params=replace(params, max_tokens=25))
    run_all(engine, [sequence])
    assert sequence.stats.rounds == 5
    assert sequence.stats.accepted_per_position == [5, 5, 5, 5]


def test_one_pass_a_step_over_all_sequences_and_no_row_twice() -> None:
    """Lazy prefill takes the first pass; the last drafted token is read in the next round only if it was accepted."""
    engine, small = spied(hashed_logits(VOCAB, 3), draft_tokens=4)
    prompts = PROMPTS[1:5]
    sequences = [
        toy_sequence(engine, prompt, sequence_id=i, params=SamplingParams(temperature=0, max_tokens=25))
        for i, prompt in enumerate(prompts)
    ]
    for sequence in sequences:
        engine.add(sequence)
    runner = drafter_of(engine)._model.runner
    engine.step()
    assert runner.passes == 0, "the target reads the prompts first"
    while not engine.idle:
        engine.step()
    assert runner.passes == 5 * 4
    # Rounds of 5 tokens: the root and 3 guesses are read each time, from the second round on the fourth one too.
    assert small.rows_seen == sum(len(prompt) - 1 for prompt in prompts) + len(prompts) * (5 * 4 + 4)


def test_the_draft_cache_holds_committed_tokens_only() -> None:
    logits_of = hashed_logits(VOCAB, 2, order=2)
    small = ToyBackend(VOCAB, blurred(logits_of, 1, 1.0))
    engine = model_engine(ToyBackend(VOCAB, logits_of), "draft-model", {"small": small}, **SMALL)
    sequences = [
        toy_sequence(engine, prompt, sequence_id=i, params=SamplingParams(max_tokens=20, seed=i))
        for i, prompt in enumerate(PROMPTS)
    ]
    for sequence in sequences:
        engine.add(sequence)
    model = drafter_of(engine)._model
    cache = model.runner.cache
    while not engine.idle:
        engine.step()
        cache.check()
        for sequence in engine.running:
            length = model.cached(sequence.id)
            assert length <= engine.runner.cache.length(sequence.id) == len(sequence.tokens) - 1
            if length:
                (table,) = cache.tables([sequence.id]).blocks
                slots = [table[i // cache.block_size] * cache.block_size + i % cache.block_size for i in range(length)]
                assert cache.storage.tokens[slots].tolist() == sequence.tokens[:length]
    assert small.rows_seen > 0


def test_beyond_the_draft_models_context_decoding_is_plain() -> None:
    logits_of = hashed_logits(VOCAB, 3)
    target = ToyBackend(VOCAB, logits_of)
    small = ToyBackend(VOCAB, logits_of, max_positions=20)
    engine = model_engine(target, "draft-model", {"small": small}, **SMALL)
    sequence = toy_sequence(engine, [1, 2, 3], params=SamplingParams(temperature=0, max_tokens=40))
    plain = model_engine(target, "none")
    assert run_all(engine, [sequence]) == run_all(plain, [toy_sequence(plain, [1, 2, 3], params=sequence.params)])
    assert sequence.stats.accepted == 15
    assert sequence.stats.rounds == 25


@pytest.mark.parametrize("draft_vocab", [7, 13])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_heads_of_other_widths(draft_vocab: int, temperature: float) -> None:
    random = hashed_logits(VOCAB, 4, order=1)

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        return random(context) - 9.0 * (np.arange(VOCAB) >= 7)

    rest = np.full(max(draft_vocab - VOCAB, 0), 9.0)

    def padded(context: tuple[int, ...]) -> np.ndarray:
        return np.concatenate([logits_of(context), rest])[:draft_vocab]

    target = ToyBackend(VOCAB, logits_of)
    engine = model_engine(target, "draft-model", {"small": ToyBackend(draft_vocab, padded)}, **SMALL)
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=3)
    wish = SpeculationParams(verify=VerifyRule.COUPLED)
    sequence = toy_sequence(engine, [1], params=params, speculation=wish)
    (output,) = run_all(engine, [sequence])
    plain = model_engine(target, "none")
    assert [output] == run_all(plain, [toy_sequence(plain, [1], params=params, speculation=wish)])
    assert sequence.stats.accepted > 0
    if draft_vocab > VOCAB:
        assert sequence.stats.acceptance_rate == 1


def propose(context: DraftContext, sequence: ToySequence, **options: object) -> list[object]:
    drafter = create_drafter("draft-model", context, **SMALL, **options)
    drafter.begin(sequence)
    return drafter.propose([sequence], [DraftBudget(8, 8)])


def small_context(logits_of: LogitsOf) -> DraftContext:
    target = ModelRunner(ToyBackend(VOCAB, logits_of), 256, block_size=8)
    return model_context(target, {"small": ToyBackend(VOCAB, logits_of)})


def test_sampled_drafts_carry_the_law_they_were_drawn_from() -> None:
    logits_of = hashed_logits(VOCAB, 6)
    params = SamplingParams(temperature=0.7, frequency_penalty=1.5, top_k=6)
    sequence = ToySequence(1, [1, 2, 3], params=params)
    (tree,) = propose(small_context(logits_of), sequence, top_k=3)
    assert tree.law is TreeLaw.SAMPLED
    assert tree.is_chain
    law = DraftLaw(sequence, DraftLawOptions(top_k=3), VOCAB, ())
    for i in range(5):
        path = tree.tokens[:i].tolist()
        logits = torch.tensor(logits_of((1, 2, 3, *path)), dtype=torch.float32)
        assert torch.equal(tree.draft_probs[i], law.probs(logits, path))
        assert tree.draft_probs[i].count_nonzero() == 3


def test_requests_choose_point_masses() -> None:
    context = small_context(hashed_logits(VOCAB, 6))
    greedy = ToySequence(1, [1, 2, 3], params=SamplingParams(temperature=0))
    coupled = ToySequence(1, [1, 2, 3], speculation=SpeculationParams(verify=VerifyRule.COUPLED))
    for sequence, options in (
        (greedy, {"temperature": 0.9}),
        (coupled, {}),
        (ToySequence(1, [1]), {"temperature": 0.0}),
    ):
        (tree,) = propose(context, sequence, **options)
        assert len(tree) == 5
        assert tree.law is TreeLaw.POINT_MASS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_ends_where_confidence_does(temperature: float) -> None:
    """Sure of each token up to the fifth of the text, then not."""

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        logits = np.zeros(VOCAB)
        logits[3] = 20.0 if len(context) < 5 else 1.0
        return logits

    sequence = ToySequence(1, [1, 2], params=SamplingParams(temperature=temperature))
    (tree,) = propose(small_context(logits_of), sequence, min_confidence=0.9)
    assert tree.tokens.tolist() == [3, 3, 3]
    (tree,) = propose(small_context(logits_of), sequence)
    assert len(tree) == 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_that_fails_harms_nobody(temperature: float) -> None:
    logits_of = hashed_logits(VOCAB, 1, order=2)

    def broken(context: tuple[int, ...]) -> np.ndarray:
        return np.full(VOCAB, np.nan) if len(context) % 3 else logits_of(context)

    target = ToyBackend(VOCAB, logits_of)
    engine = model_engine(target, "draft-model", {"small": ToyBackend(VOCAB, broken)}, **SMALL)
    sequence = toy_sequence(engine, [1], params=SamplingParams(temperature=temperature, max_tokens=30, seed=1))
    (output,) = run_all(engine, [sequence])
    assert len(output) == 30
    assert sequence.error is None


def test_a_model_of_another_vocabulary_is_refused() -> None:
    target = ModelRunner(ToyBackend(VOCAB, hashed_logits(VOCAB)), 64, block_size=8)
    context = replace(
        model_context(target, {}),
        load_model=lambda name: LoadedModel(ToyBackend(VOCAB, hashed_logits(VOCAB)), ToyTokenizer("strange")),
    )
    with pytest.raises(ConfigError, match=r"draft model 'small' .*token 7 is 'toy' .*'strange'"):
        create_drafter("draft-model", context, model="small")


def test_a_draft_model_is_made_of_the_targets_layers() -> None:
    logits_of = memoised(hashed_logits(VOCAB, 1, order=2))
    target = LayeredToy(VOCAB, logits_of, blurred(logits_of, 1, 0.5))
    for options, lent in (({}, [0, 5]), ({"layers": 3}, [0, 2, 5]), ({"layers": 1}, [0]), ({"layers": 6}, [*range(6)])):
        engine = model_engine(target, "draft-model", **options)
        assert target.lent == lent
    assert greedy_texts(engine, PROMPTS, WISHES) == greedy_texts(model_engine(target, "none"), PROMPTS, WISHES)
    with pytest.raises(ConfigError, match="layers is 7; the target has 6"):
        model_engine(target, "draft-model", layers=7)
    with pytest.raises(ConfigError, match="lend_layers"):
        model_engine(ToyBackend(VOCAB, logits_of), "draft-model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_tokens": 0}, "draft_tokens is 0"),
        ({"temperature": -1.0}, "of the draft, temperature is -1.0"),
        ({"top_p": 1.5}, "of the draft, top_p is 1.5"),
        ({"min_confidence": 1.5}, "min_confidence is 1.5"),
        ({"layers": 0}, "layers is 0"),
        ({"layers": 2, "model": "small"}, "give one of the two"),
        ({"cache_tokens": 0}, "cache_tokens is 0"),
        ({"draft_tokens": "5"}, "must be an integer"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_drafter("draft-model", DraftContext(VOCAB), **options)


def test_contexts_that_lack_what_is_needed_are_refused() -> None:
    build: Callable[..., object] = create_drafter
    with pytest.raises(ConfigError, match="runner"):
        build("draft-model", DraftContext(VOCAB))
    with pytest.raises(ConfigError, match="load_model"):
        build("draft-model", DraftContext(VOCAB), model="small")
