"""Drafters on native models with attention of other kinds: plain decoding's tokens, in batches and small caches."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_cases import random_tokens, small_config
from native_here import needs_native
from stretch_cases import Counted, make_engine, one_by_one, told
from thinning import thorough_but
from toys import run_all, toy_sequence

from headstart.models.config import (
    Alibi,
    AttentionConfig,
    HeadNorms,
    LatentConfig,
    LayerConfig,
    QueryGrowth,
    RopeConfig,
)
from headstart.models.experts_config import ExpertsConfig
from headstart.sampling.params import SamplingParams

pytestmark = needs_native
LATENT = (LayerConfig(mixer="latent"), *[LayerConfig(mixer="latent", channel="experts")] * 5)
CONFIGS = {
    "latent attention": small_config(
        layers=LATENT,
        ropes=(RopeConfig(theta=1000.0, dim=32),),
        num_heads=3,
        num_kv_heads=3,
        head_dim=64,
        latent=LatentConfig(64, 32, 32, 64, q_rank=64),
        experts=ExpertsConfig(12, 3, 40, normalised=True, shared_size=48),
    ),
    "alibi": small_config(
        layers=(LayerConfig(rope=None),) * 6,
        ropes=(),
        attention=AttentionConfig(alibi=Alibi(tuple(2.0 ** -(i + 1) for i in range(6)))),
    ),
    "chunks, gates, late norms, growing queries": small_config(
        layers=(*[LayerConfig(chunk=16)] * 5, LayerConfig(rope=None)),
        attention=AttentionConfig(
            qk_norm=HeadNorms(rotated=True, everywhere=False),
            query_growth=QueryGrowth(0.3, 9, everywhere=False),
            gate="element",
        ),
    ),
}
each_kind = pytest.mark.parametrize("kind", CONFIGS)
SETTINGS = (
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=40, ignore_eos=True),
)


@pytest.mark.parametrize("params", thorough_but(SETTINGS[1:], SETTINGS), ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", thorough_but(["latent attention"], CONFIGS))
def test_drafters_leave_every_token_as_it_is(
    kind: str, params: SamplingParams, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds at once and one by one, of several sequences."""
    answers = []
    for singly in (False, True):
        if singly:
            at_once = counted.rounds
            one_by_one(monkeypatch)
        # Guesses that early exit draws by itself are verified by another rule: the law is kept, not the draws.
        own_draws = () if params.temperature else ("early-exit",)
        for drafter in ("none", "suffix", "eagle3", "auto", *own_draws):
            engine = make_engine(drafter, head_directory, config=CONFIGS[kind])
            prompts = [random_tokens(6, seed) * 4 for seed in range(3)]
            sequences = [
                toy_sequence(engine, prompt, sequence_id=place, params=params) for place, prompt in enumerate(prompts)
            ]
            run_all(engine, sequences)
            answers.append([told(each, with_counts=False) for each in sequences])
    assert all(answer == answers[0] for answer in answers)
    assert 0 < at_once == counted.rounds


@each_kind
def test_a_small_cache_preempts_and_changes_nothing(kind: str, head_directory: Path) -> None:
    answers, preemptions = [], []
    for cache_tokens in (4096, 288):
        engine = make_engine("suffix", head_directory, config=CONFIGS[kind], cache_tokens=cache_tokens, max_context=120)
        sequences = [
            toy_sequence(engine, random_tokens(6, seed) * 5, sequence_id=seed, params=SETTINGS[0]) for seed in range(6)
        ]
        run_all(engine, sequences)
        engine.check()
        answers.append([told(each, with_counts=False) for each in sequences])
        preemptions.append(sum(each.stats.preemptions for each in sequences))
    assert answers[0] == answers[1]
    assert preemptions[0] == 0 < preemptions[1]
