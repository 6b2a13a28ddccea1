"""Groups of beams in the engine: what they find, with whom they share passes and pages, and how they end."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pytest
import torch
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.engine.beams import BeamGroup
from headstart.engine.engine import Engine
from headstart.engine.outputs import FinishReason, TokenOrigin
from headstart.engine.schedule import Limits
from headstart.engine.sequence import Sequence
from headstart.errors import RequestError
from headstart.passes.cache.prefix import PrefixIndex
from headstart.sampling.params import SamplingParams
from headstart.verification.beam import BeamRules, BeamSearch

VOCAB, EOS = 12, 5
PROMPT = [7, 1, 2, 3, 9] * 5
LOGITS = hashed_logits(VOCAB, 3, order=3, scale=2.0)
DRAFTERS = ["none", "ngram", "suffix", "recycling", "lookahead", "random", "auto"]
PARAMS = SamplingParams(beam_width=3, n=2, max_tokens=14)


def new_engine(drafter: str = "none", logits: LogitsOf = LOGITS, **options: object) -> Engine:
    return toy_engine(ToyBackend(VOCAB, logits, eos=(EOS,)), drafter, **options)  # type: ignore[arg-type]


def group_of(
    engine: Engine, prompt: Seq[int] = PROMPT, first_id: int = 0, params: SamplingParams = PARAMS
) -> BeamGroup:
    results = [toy_sequence(engine, prompt, sequence_id=first_id + i, params=params, sample=i) for i in range(params.n)]
    return BeamGroup(results)


def searched(prompt: Seq[int] = PROMPT, params: SamplingParams = PARAMS) -> list[tuple[list[int], float]]:
    """The same search over the law itself: no engine, no cache."""
    rules = BeamRules(
        params.beam_width or 1, params.max_tokens or 1, frozenset({EOS}), params.length_penalty, params.early_stopping
    )
    search = BeamSearch(rules)
    while not search.done:
        rows = [
            torch.tensor(LOGITS((*prompt, *path.tokens)), dtype=torch.float32).log_softmax(-1).numpy()
            for path in search.live
        ]
        search.step(rows)
    return [(path.tokens, float(path.score)) for path in search.ended[: params.n]]


def outcome(group: BeamGroup) -> list[tuple[list[int], float | None]]:
    return [(result.output, result.score) for result in group.results]


def is_clean(engine: Engine) -> bool:
    allocator = engine.runner.cache.allocator
    return allocator.num_free == allocator.num_blocks and not engine.running


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_engine_finds_what_the_search_finds(drafter: str, width: int) -> None:
    params = SamplingParams(beam_width=width, n=width, max_tokens=14)
    engine = new_engine(drafter)
    groups = [group_of(engine, prompt, 10 * i, params) for i, prompt in enumerate((PROMPT, [4], [2, 8] * 11))]
    run_all(engine, [result for group in groups for result in group.results])
    for group in groups:
        assert outcome(group) == searched(group.head.tokens[: group.head.prompt_length], params)
    assert is_clean(engine)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_beams_and_ordinary_requests_share_passes(drafter: str) -> None:
    others = [SamplingParams(temperature=0, max_tokens=20), SamplingParams(temperature=1.0, seed=4, max_tokens=9)]
    alone = new_engine()
    expected = run_all(alone, [toy_sequence(alone, PROMPT, sequence_id=i, params=p) for i, p in enumerate(others)])
    engine = new_engine(drafter)
    group = group_of(engine, first_id=5)
    ordinary = [toy_sequence(engine, PROMPT, sequence_id=i, params=p) for i, p in enumerate(others)]
    run_all(engine, [ordinary[0], *group.results, ordinary[1]])
    assert outcome(group) == searched()
    assert [sequence.output for sequence in ordinary] == expected


def test_guesses_save_passes_and_are_told_of() -> None:
    engine = new_engine("recycling", hashed_logits(VOCAB, 3, order=1, scale=3.0))
    groups = [group_of(engine, first_id=10 * i) for i in range(2)]
    run_all(engine, groups[0].results)
    run_all(engine, groups[1].results)  # now every token has been seen
    stats = groups[1].head.stats
    assert stats.passes_saved == stats.beam_steps - stats.rounds > 3
    assert stats.drafted >= stats.accepted > 0
    assert stats.drafted_per_position[0] >= stats.accepted_per_position[0] > 0
    assert TokenOrigin.ACCEPTED in groups[1].head.origins
    assert len(groups[1].head.origins) == stats.tokens == len(groups[1].head.output)
    assert groups[1].results[1].stats.rounds == 0
    assert outcome(groups[0]) == outcome(groups[1])


@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("drafter", ["none", "recycling", "suffix"])
def test_a_preempted_group_goes_on_with_shared_pages(drafter: str, prefixes: bool) -> None:
    """Beams that find all their tokens in the cache wait for those that have to read some."""
    params = SamplingParams(beam_width=4, n=4, max_tokens=24, ignore_eos=True)
    expected = new_engine()
    calm = group_of(expected, params=params)
    run_all(expected, calm.results)
    engine = new_engine(drafter, cache_tokens=120 if prefixes else 144)
    engine.runner.cache.pool.prefixes = PrefixIndex("toy") if prefixes else None
    group = group_of(engine, first_id=5, params=params)
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    other = toy_sequence(engine, PROMPT, params=greedy)
    run_all(engine, [other, *group.results])
    assert group.head.stats.preemptions
    assert outcome(group) == outcome(calm)
    assert is_clean(engine)


def test_a_group_alone_without_room_ends_with_what_it_has() -> None:
    engine = new_engine(cache_tokens=48)
    params = SamplingParams(beam_width=3, n=3, max_tokens=60, ignore_eos=True)
    group = group_of(engine, params=params)
    run_all(engine, group.results)
    assert {result.finish_reason for result in group.results} == {FinishReason.LENGTH}
    assert 0 < len(group.head.output) < 60
    assert is_clean(engine)


def test_a_group_without_room_for_its_first_step_says_nothing() -> None:
    engine = new_engine(cache_tokens=32)
    group = group_of(engine, params=SamplingParams(beam_width=6, n=2, max_tokens=9))
    run_all(engine, group.results)
    assert [(result.output, result.finish_reason) for result in group.results] == [([], FinishReason.LENGTH)] * 2
    assert is_clean(engine)


def test_a_prefix_is_read_once() -> None:
    engine = new_engine("ngram")
    engine.runner.cache.pool.prefixes = PrefixIndex("toy")
    groups = [group_of(engine, PROMPT * 3, first_id=10 * i) for i in range(2)]
    run_all(engine, groups[0].results)
    run_all(engine, groups[1].results)
    assert groups[1].head.stats.cached_tokens == 72
    assert outcome(groups[0]) == outcome(groups[1]) == searched(PROMPT * 3)


def test_groups_take_the_room_of_all_their_beams() -> None:
    engine = new_engine(limits=Limits(max_sequences=4))
    groups = [group_of(engine, first_id=10 * i) for i in range(2)]
    for group in groups:
        for result in group.results:
            engine.add(result)
    engine.step()
    assert {sequence.group for sequence in engine.running} == {groups[0]}
    run_all(engine, [])
    assert outcome(groups[0]) == outcome(groups[1])
    with pytest.raises(RequestError, match="beam_width is 5, and this engine decodes 4 sequences"):
        engine.add(group_of(engine, params=SamplingParams(beam_width=5, max_tokens=3)).head)


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_group_dies_together(rounds: int) -> None:
    engine = new_engine("recycling")
    group = group_of(engine)
    for result in group.results:
        engine.add(result)
    for _ in range(rounds):
        engine.step()
        assert engine.runs(group.results[1])
    engine.abort(group.results[1])
    assert engine.idle
    assert {result.finish_reason for result in group.results} == {FinishReason.ABORT}
    assert is_clean(engine)


def test_logits_that_are_no_numbers_end_the_group_alone() -> None:
    def logits(context: tuple[int, ...]) -> np.ndarray:
        broken = context[0] == 11 and len(context) > 6
        return np.full(VOCAB, np.nan) if broken else LOGITS(context)

    engine = new_engine("ngram", logits)
    bad, good = group_of(engine, [11, 2]), group_of(engine, first_id=5)
    run_all(engine, [*bad.results, *good.results])
    assert {result.finish_reason for result in bad.results} == {FinishReason.ERROR}
    assert "not a finite number" in str(bad.head.error)
    assert outcome(good) == searched()
    assert is_clean(engine)


def test_outputs_that_do_not_exist_are_said_to_be_missing() -> None:
    engine = new_engine()
    params = SamplingParams(beam_width=3, n=3, max_tokens=4, allowed_token_ids=(1,))
    group = group_of(engine, params=params)
    run_all(engine, group.results)
    assert group.head.output == [1, 1, 1, 1]
    assert group.head.score == pytest.approx(sum_of([1, 1, 1, 1]) / 4)
    assert "found 1 outputs and no more" in str(group.results[1].error)
    assert group.results[1].error_field == "n"


def sum_of(output: list[int]) -> float:
    total = 0.0
    for place, token in enumerate(output):
        total += float(torch.tensor(LOGITS((*PROMPT, *output[:place]))).log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("drafter", ["none", "recycling"])
def test_log_probabilities_are_the_targets_own(drafter: str) -> None:
    engine = new_engine(drafter)
    params = SamplingParams(beam_width=3, n=3, max_tokens=8, logprobs=2, prompt_logprobs=1, repetition_penalty=1.3)
    group = group_of(engine, params=params)
    run_all(engine, group.results)
    for result in group.results:
        assert [said.token_id for said in result.logprobs] == result.output
        assert sum(said.logprob for said in result.logprobs) == pytest.approx(sum_of(result.output), rel=1e-5)
        assert len(result.prompt_logprobs) == len(PROMPT) - 1


@pytest.mark.parametrize("drafter", ["ngram", "recycling", "suffix"])
@pytest.mark.parametrize(
    "more",
    [
        {"repetition_penalty": 1.4},
        {"frequency_penalty": -1.0},
        {"logit_bias": {3: 2.0}, "min_tokens": 6},
        {"banned_sequences": ((1, 2), (4,)), "presence_penalty": 0.5},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 1},
    ],
)
def test_transforms_follow_each_beams_own_history(drafter: str, more: dict[str, object]) -> None:
    params = SamplingParams(beam_width=3, n=3, max_tokens=12, **more)  # type: ignore[arg-type]
    plain, guessed = new_engine(), new_engine(drafter)
    groups = [group_of(engine, params=params) for engine in (plain, guessed)]
    for engine, group in zip((plain, guessed), groups, strict=True):
        run_all(engine, group.results)
    assert outcome(groups[0]) == outcome(groups[1])
    assert outcome(groups[0]) != searched(params=SamplingParams(beam_width=3, n=3, max_tokens=12))


def test_storm() -> None:
    """Groups and ordinary requests of many kinds come and go in a small cache."""
    rng = np.random.default_rng(0)
    for drafter in ("recycling", "ngram", "auto"):
        engine = new_engine(drafter, cache_tokens=240, limits=Limits(max_sequences=7, max_rows=24, max_context=120))
        groups: list[BeamGroup] = []
        ordinary: list[Sequence] = []
        for i in range(14):
            prompt = rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
            if rng.random() < 0.6:
                width = int(rng.integers(1, 5))
                params = SamplingParams(beam_width=width, n=width, max_tokens=int(rng.integers(1, 16)))
                groups.append(group_of(engine, prompt, 10 * i, params))
                for result in groups[-1].results:
                    engine.add(result)
            else:
                params = SamplingParams(temperature=0, max_tokens=12)
                ordinary.append(toy_sequence(engine, prompt, sequence_id=10 * i, params=params))
                engine.add(ordinary[-1])
            for _ in range(int(rng.integers(0, 4))):
                engine.step()
                engine.check()
        run_all(engine, [])
        assert is_clean(engine)
        for group in groups:
            prompt = group.head.tokens[: group.head.prompt_length]
            assert outcome(group) == searched(prompt, group.head.params)
