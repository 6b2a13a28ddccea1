"""What bench and plan say about passes of a model with experts."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from tiny_models import make_model, save_model

from headstart.backends.torch.backend import TorchBackend
from headstart.engine.outputs import SequenceStats
from headstart.models.checkpoint import open_checkpoint
from headstart.models.experts_config import ExpertsConfig
from headstart.models.weight_loading import load_decoder
from headstart.sampling.params import SamplingParams
from headstart_lab.bench import drafters_report as report
from headstart_lab.bench.run import BenchRuns, RecordingDrafter, Run
from headstart_lab.bench.summary import summarise
from headstart_lab.plan import plan_report
from headstart_lab.plan.expert_passes import ExpertPass, at_random, expert_costs, expert_table
from headstart_lab.plan.forecast import make_plan
from headstart_lab.workbench import Contender, Workbench

TITLE = "Rows, distinct experts, time"
CONFIG = ExpertsConfig(16, 2, 8)


@pytest.fixture(scope="module")
def mixed() -> Workbench:
    torch.set_num_threads(1)
    with TemporaryDirectory() as directory:
        config, weights = load_decoder(
            open_checkpoint(save_model(make_model("mixtral"), Path(directory))), torch.float32
        )
        return Workbench(TorchBackend(config, weights), max_context=120, max_sequences=2)


def test_passes_are_told_apart_by_rows_and_by_experts() -> None:
    passes = [ExpertPass(4, float(experts), 0.01 * experts) for experts in (2, 3, 4, 5, 6, 7, 8, 8)]
    passes.append(ExpertPass(1, 2.0, 0.5))
    one, four = expert_costs(CONFIG, passes)
    assert (one.rows, one.passes, one.experts, one.seconds, one.fewer, one.more) == (1, 1, 2.0, 0.5, None, None)
    assert (four.rows, four.passes) == (4, 8)
    assert four.at_random == pytest.approx(at_random(16, 2, 4.0))
    assert four.experts == pytest.approx(43 / 8)
    assert four.seconds == pytest.approx(0.055)
    assert four.fewer == pytest.approx((3.5, 0.035))
    assert four.more == pytest.approx((7.25, 0.075))
    table = expert_table(CONFIG, [one, four])
    assert table.title == TITLE
    assert table.texts()[1][:5] == ["4", "8", "6.6", "5.4", "55.00"]


def test_passes_that_all_called_equally_many_are_not_halved() -> None:
    (costs,) = expert_costs(CONFIG, [ExpertPass(1, 2.0, 0.1)] * 20)
    assert costs.fewer is None


def test_a_benchmark_keeps_the_passes_of_its_rounds(mixed: Workbench) -> None:
    engine = mixed.open(Contender.parse("ngram"), RecordingDrafter)
    sequence = mixed.sequence([5, 6, 7] * 4, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    mixed.decode(engine, sequence)
    assert isinstance(engine.drafter, RecordingDrafter)
    depths, passes = engine.drafter.take_depths(), engine.drafter.take_passes()
    assert len(depths) == len(passes) == sequence.stats.rounds
    assert sum(each.rows for each in passes) == sequence.stats.rounds + sequence.stats.drafted
    config = mixed.backend.config.experts
    assert config is not None
    assert all(config.used <= each.experts <= config.count and each.seconds > 0 for each in passes)
    assert engine.drafter.take_passes() == ()


def runs(experts: ExpertsConfig | None) -> BenchRuns:
    stats = SequenceStats(tokens=8, rounds=8, seconds=2.0, target_seconds=1.0)
    passes = (ExpertPass(1, 2.0, 0.1),) if experts is not None else ()
    return BenchRuns([Run("none", "1", "qa", 0, 0, (1,) * 8, (0,) * 8, stats, True, passes)], experts=experts)


def test_a_benchmark_shows_the_table_of_models_with_experts_alone() -> None:
    for found in (runs(CONFIG), runs(None)):
        summaries = summarise(found)
        titles = [each.title for each in report.exhibits(found, summaries)]
        assert (TITLE in titles) == ("expert_passes" in report.to_json(found, summaries, {}))
        assert (TITLE in titles) == (found.experts is not None)
    (line,) = report.to_json(runs(CONFIG), summarise(runs(CONFIG)), {})["expert_passes"]
    assert (line["rows"], line["experts"], line["seconds"]) == (1, 2.0, 0.1)


def test_a_plan_times_passes_over_the_prompts_own_tokens(mixed: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, read = random.Random(3).choices(range(3, 101), k=20), set()
    forward = mixed.runner.forward

    def noted(spans, *more):
        read.update(token for span in spans for token in span.tokens.tolist())
        return forward(spans, *more)

    monkeypatch.setattr(mixed.runner, "forward", noted)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    plan = make_plan(mixed, [Contender.parse("none")], [prompt], params, [1, 2], repeats=1)
    assert set(prompt) <= read
    config = mixed.backend.config.experts
    assert config is not None
    for times in plan.passes:
        assert {batch: list(curve) for batch, curve in times.experts.items()} == {
            batch: list(curve) for batch, curve in times.seconds.items()
        }
        assert times.experts[1][1] == config.used < times.experts[1][8] <= config.count
    assert TITLE in [each.title for each in plan_report.exhibits(plan)]
    assert all("experts" in line for line in plan_report.to_json(plan, {})["passes"])
