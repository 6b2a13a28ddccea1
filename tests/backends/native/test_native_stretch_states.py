"""Rounds at once of models whose layers keep states: plain decoding's tokens, and a cache that others go on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_cases import native, random_tokens, small_config
from native_here import FASTEST, needs_native
from stretch_cases import Counted, CutText, make_engine, one_by_one, told
from thinning import thorough_but
from toys import run_all, toy_sequence

from headstart.models.config import LayerConfig
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.pass_times import measure_passes
from headstart_lab.workbench import Workbench

pytestmark = needs_native
CONVOLVING = LayerConfig(rope=None, mixer="convolution")
DELTA = LayerConfig(rope=None, mixer="delta")
CONFIG = small_config(
    layers=(CONVOLVING, LayerConfig(), LayerConfig(mixer="mamba2"), DELTA, LayerConfig(), CONVOLVING),
    convolution=ConvolutionConfig(3),
    delta=DeltaConfig(2, 4, 32, 32, 4),
    mamba2=Mamba2Config(4, 24, 8, 2, 4),
    family="states of a test",
)
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=60, ignore_eos=True)
DRAFTERS = ("none", "suffix", "eagle3", "auto")


@pytest.mark.parametrize("params", thorough_but([DRAWN], [GREEDY, DRAWN]), ids=["greedy", "drawn"])
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_drafters_leave_every_token_as_it_is(
    count: int, params: SamplingParams, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds at once and one by one, alone and in batches."""
    answers = []
    for singly in (False, True):
        if singly:
            at_once = counted.rounds
            one_by_one(monkeypatch)
        for drafter in DRAFTERS:
            engine = make_engine(drafter, head_directory, config=CONFIG)
            prompts = [random_tokens(6, seed) * 4 for seed in range(count)]
            sequences = [
                toy_sequence(engine, prompt, sequence_id=place, params=params) for place, prompt in enumerate(prompts)
            ]
            run_all(engine, sequences)
            engine.check()
            answers.append([told(each, with_counts=False) for each in sequences])
    assert all(answer == answers[0] for answer in answers)
    assert 0 < at_once == counted.rounds


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_next_turn_finds_what_was_said(drafter: str, head_directory: Path, counted: Counted) -> None:
    """States after blocks are kept, also of those that rounds at once have filled; requests may end in them."""
    engine = make_engine(drafter, head_directory, config=CONFIG, prefixes=True)
    first = toy_sequence(engine, random_tokens(40), params=GREEDY)
    (said,) = run_all(engine, [first])
    turn = toy_sequence(engine, [*first.tokens, 5, 6, 7], sequence_id=1, params=GREEDY)
    (after,) = run_all(engine, [turn])
    assert counted.rounds > 0
    assert turn.stats.cached_tokens == 96
    other = make_engine("none", head_directory, config=CONFIG)
    assert run_all(other, [toy_sequence(other, [*first.tokens, 5, 6, 7], params=GREEDY)]) == [after]
    fresh = next(i for i in range(20, len(said)) if said[i] not in said[:i])
    cut, whole = (toy_sequence(engine, random_tokens(40), sequence_id=i, params=GREEDY) for i in (2, 3))
    cut.text = CutText(said[fresh])
    assert run_all(engine, [cut, whole]) == [said[: fresh + 1], said]
    engine.check()


def test_few_states_make_few_rounds(head_directory: Path, counted: Counted) -> None:
    said = []
    most = []
    for states in (64, 22, 4):
        engine = make_engine("suffix", head_directory, config=CONFIG, num_states=states)
        counted.most_rounds = 0
        said.append(run_all(engine, [toy_sequence(engine, random_tokens(6) * 4, params=GREEDY)], seconds=60.0))
        engine.check()
        most.append(counted.most_rounds)
    assert said[0] == said[1] == said[2]
    assert most[0] > most[1] > most[2] == 0


def test_rounds_at_once_are_timed() -> None:
    bench = Workbench(native(CONFIG, "bf16", FASTEST), max_context=200, max_sequences=2)
    times = measure_passes(bench, 8, [1, 2], 2, GREEDY)
    assert sorted(times.at_once) == [1, 2]
    assert bench.runner.cache.free == bench.runner.cache.size
