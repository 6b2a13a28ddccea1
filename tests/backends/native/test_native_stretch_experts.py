"""Drafters on a native mixture of experts: plain decoding's tokens, and the planner hears what passes called."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_cases import random_tokens, small_config
from native_here import needs_native
from stretch_cases import Counted, make_engine, one_by_one, told
from toys import run_all, toy_sequence

from headstart.backends.native.stretch import NativeStretches
from headstart.models.config import LayerConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.passes.rounds import RoundRecord
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.run import RecordingDrafter

pytestmark = needs_native
EXPERTS = ExpertsConfig(12, 3, 40, normalised=True, shared_size=48)
CONFIG = small_config(
    layers=(LayerConfig(), *[LayerConfig(channel="experts")] * 5), experts=EXPERTS, family="mixture of a test"
)
SETTINGS = (
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=40, ignore_eos=True),
)


@pytest.mark.parametrize("params", SETTINGS, ids=["greedy", "drawn"])
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
        for drafter in ("none", "suffix", "eagle3", "auto"):
            engine = make_engine(drafter, head_directory, config=CONFIG)
            prompts = [random_tokens(6, seed) * 4 for seed in range(count)]
            sequences = [
                toy_sequence(engine, prompt, sequence_id=place, params=params) for place, prompt in enumerate(prompts)
            ]
            run_all(engine, sequences)
            answers.append([told(each, with_counts=False) for each in sequences])
    assert all(answer == answers[0] for answer in answers)
    assert 0 < at_once == counted.rounds


def test_rounds_at_once_tell_what_their_passes_called(head_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[RoundRecord] = []
    run = NativeStretches.run

    def heard(stretches: NativeStretches, *arguments: object) -> list[RoundRecord]:
        rounds = run(stretches, *arguments)  # type: ignore[arg-type]
        done.extend(rounds)
        return rounds

    monkeypatch.setattr(NativeStretches, "run", heard)
    for drafter in ("none", "suffix"):
        done.clear()
        engine = make_engine(drafter, head_directory, config=CONFIG)
        run_all(engine, [toy_sequence(engine, random_tokens(6) * 4, params=SETTINGS[0])])
        assert len(done) > 4
        for each in done:
            assert each.experts is not None
            rows = 1 + each.nodes
            assert EXPERTS.used <= each.experts <= min(EXPERTS.count, EXPERTS.used * rows)
            assert rows > 1 or each.experts == EXPERTS.used
        assert any(each.nodes for each in done) is (drafter == "suffix")


def test_a_bench_keeps_passes_of_rounds_at_once(head_directory: Path, counted: Counted) -> None:
    engine = make_engine("suffix", head_directory, config=CONFIG)
    recorder = RecordingDrafter(engine.drafter)
    engine.drafters.drafters["default"] = recorder
    run_all(engine, [toy_sequence(engine, random_tokens(6) * 4, params=SETTINGS[0])])
    passes = recorder.take_passes()
    assert len(passes) >= counted.rounds > 0
    assert all(EXPERTS.used <= each.experts <= EXPERTS.used * each.rows for each in passes)
