from __future__ import annotations

import numpy as np
import pytest
from model_toys import LayeredToy, blurred, coupled_texts, greedy_texts, model_context, model_engine
from text_laws import CROWD, opposed_tables, p_value, sample_texts
from toys import ToyBackend, hashed_logits, table_logits, toy_sequence

from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.registry import create_drafter
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError
from headstart.passes.runner import ModelRunner, Span

VOCAB = 10
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, size=1 + 9 * i % 31).tolist() for i in range(9)]
WISHES = [SpeculationParams(), SpeculationParams(draft_tokens=2), SpeculationParams(enabled=False)]


def layered(seed: int) -> LayeredToy:
    logits_of = hashed_logits(VOCAB, seed, order=3)
    return LayeredToy(VOCAB, logits_of, blurred(logits_of, seed, 1.0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("limits", "target_tokens"),
    [(Limits(), 4096), (Limits(max_sequences=3, max_rows=20, draft_rows=5), 4096), (Limits(), 160)],
    ids=["plenty", "small passes", "preemption"],
)
def test_greedy_texts_are_those_of_plain_decoding(seed: int, limits: Limits, target_tokens: int) -> None:
    target = layered(seed)
    engine = model_engine(target, "early-exit", limits=limits, target_tokens=target_tokens)
    assert greedy_texts(engine, PROMPTS, WISHES) == greedy_texts(model_engine(target, "none"), PROMPTS, WISHES)
    assert target.depths_run[2] > 0
    assert target.depths_run.keys() == {None, 2}


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.8, "repetition_penalty": 1.3}])
def test_coupled_texts_do_not_depend_on_the_draft(changes: dict[str, object]) -> None:
    target = layered(7)
    plain, _ = coupled_texts(model_engine(target, "none"), PROMPTS, **changes)
    texts, stats = coupled_texts(model_engine(target, "early-exit"), PROMPTS, **changes)
    assert texts == plain
    assert sum(each.accepted for each in stats) > 60


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_texts_follow_the_targets_law(count: int) -> None:
    whole, early = opposed_tables()
    target = LayeredToy(4, table_logits(whole), table_logits(early))
    texts = sample_texts(model_engine(target, "early-exit", limits=CROWD, draft_tokens=2), count, 3)
    assert p_value(texts, whole) > 1e-3
    assert p_value(texts, early) < 1e-12


def test_the_targets_cache_is_left_as_it_was() -> None:
    target = layered(1)
    runner = ModelRunner(target, 64, block_size=8)
    drafter = create_drafter("early-exit", model_context(runner, {}), draft_tokens=20)
    engine = model_engine(target, "none")
    sequences = [toy_sequence(engine, PROMPTS[i], sequence_id=i) for i in (1, 2)]
    for sequence in sequences:
        runner.cache.add(sequence.id)
        prompt = Span.chain(sequence.id, sequence.tokens[:-1])
        with runner.cache.reserve({sequence.id: len(prompt)}):
            runner.forward([prompt])
            runner.cache.commit(sequence.id, range(len(prompt)))
    tables = runner.cache.tables([1, 2]).blocks.tolist()
    trees = drafter.propose(sequences, [DraftBudget(20, 20)] * 2)
    # 9 and 18 tokens in blocks of 8 leave 3 of 8 blocks free: the second takes two of them, the first runs out.
    assert [len(tree) for tree in trees] == [15, 20]
    assert [runner.cache.length(i) for i in (1, 2)] == [9, 18]
    assert runner.cache.tables([1, 2]).blocks.tolist() == tables
    runner.cache.check()


def test_one_pass_a_step_over_all_sequences() -> None:
    target = layered(1)
    engine = model_engine(target, "early-exit", draft_tokens=3, layers=4)
    sequences = [toy_sequence(engine, PROMPTS[i], sequence_id=i) for i in range(1, 5)]
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    target.depths_run.clear()
    engine.step()
    assert target.depths_run == {4: 3, None: 1}


def test_layers_must_be_fewer_than_the_targets() -> None:
    for layers in (6, 9):
        with pytest.raises(ConfigError, match=f"layers is {layers}; the target has 6"):
            model_engine(layered(0), "early-exit", layers=layers)
    with pytest.raises(ConfigError, match="layers is 0"):
        model_engine(layered(0), "early-exit", layers=0)
    with pytest.raises(ConfigError, match="fewer must draft"):
        model_engine(ToyBackend(VOCAB, hashed_logits(VOCAB)), "early-exit")
