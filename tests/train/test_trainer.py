"""The loop on a tiny target: it learns, it goes on after a kill bit for bit, and it keeps to its budget."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from thinning import thorough_but
from training_toys import documents, packs, prompts, tables, target, weights

from headstart.drafting.methods.eagle.head import EagleHead
from headstart.entrypoints.llm import LLM
from headstart.errors import CheckpointError, ConfigError
from headstart.passes.batch import FINAL_TAP
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_lab.methods.medusa.training import ParallelObjective
from headstart_train.checkpoints import CHECKPOINT_FILE, Progress
from headstart_train.choices import OptimiserName
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.objectives.eagle import EagleObjective
from headstart_train.objectives.objective import Objective
from headstart_train.states import TargetStates
from headstart_train.text.packs import Pack
from headstart_train.trainer import StepReport, Trainer, TrainSettings, learning_rate

VOCAB = 259
SETTINGS = TrainSettings(steps=6, batch=4, micro_batch=2, evaluate_every=3, save_every=2, lr=2e-3)


def eagle(variant: str = "eagle3") -> EagleObjective:
    torch.manual_seed(0)
    head = EagleHead(eagle_config(target().config, variant))  # type: ignore[arg-type]
    if variant == "eagle3":
        with torch.no_grad():
            head.lm_head.weight.copy_(weights().head.weight)
    return EagleObjective(head, tables(), torch.arange(VOCAB), steps=3)


def parallel(kind: str) -> ParallelObjective:
    torch.manual_seed(0)
    head = ParallelHeads(ParallelConfig(kind, 32, VOCAB, VOCAB, slots=3))  # type: ignore[arg-type]
    return ParallelObjective(head, tables(), torch.arange(VOCAB))


def trainer(
    out: Path, objective: Objective, settings: TrainSettings = SETTINGS, held_out: Sequence[Pack] = (), **more: object
) -> Trainer:
    taps = objective.head.config.taps if isinstance(objective.head, EagleHead) else (FINAL_TAP,)
    states = TargetStates(target().backend, tables().head, taps, 1 << 24)
    return Trainer(objective, states, packs()[:8], held_out or packs()[8:], settings, out, **more)  # type: ignore[arg-type]


class Killed(Exception):
    pass


def kill_after(step: int) -> Callable[[StepReport], None]:
    def on_step(report: StepReport) -> None:
        if report.progress.step == step:
            raise Killed

    return on_step


@pytest.mark.parametrize(
    ("killed_at", "optimiser"),
    thorough_but([(3, "adamw")], [(1, "adamw"), (3, "adamw"), (4, "adamw"), (3, "muon")]),
)
def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path, killed_at: int, optimiser: OptimiserName) -> None:
    """Killed before a checkpoint, between two, and right behind one."""
    settings = replace(SETTINGS, optimiser=optimiser, average=0.5)
    trainer(tmp_path / "whole", eagle(), settings).run()
    with pytest.raises(Killed):
        trainer(tmp_path / "killed", eagle(), settings).run(kill_after(killed_at))
    again = trainer(tmp_path / "killed", eagle(), settings)
    assert again.progress.step == killed_at // 2 * 2
    again.run()
    for name in (CHECKPOINT_FILE, "model.safetensors"):
        whole, killed = (load_file(tmp_path / run / name) for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole)
    assert again.progress.losses == trainer(tmp_path / "whole", eagle(), settings).progress.losses


def test_a_finished_training_has_nothing_left_to_do(tmp_path: Path) -> None:
    trainer(tmp_path, eagle()).run()
    before = (tmp_path / CHECKPOINT_FILE).read_bytes()
    steps: list[StepReport] = []
    trainer(tmp_path, eagle()).run(steps.append)
    assert not steps
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == before


def test_the_head_that_is_written_is_the_mean(tmp_path: Path) -> None:
    """Of all steps' weights, which the mean of two stages tells: what one step left and what two left."""
    settings = replace(SETTINGS, steps=2, save_every=1, evaluate_every=2, average=1.0, final_lr=1.0)
    with pytest.raises(Killed):
        trainer(tmp_path, eagle(), settings).run(kill_after(1))
    first = load_file(tmp_path / CHECKPOINT_FILE)
    trainer(tmp_path, eagle(), settings).run()
    second = load_file(tmp_path / CHECKPOINT_FILE)
    name = "fc.weight"
    assert not torch.equal(first[f"head.{name}"], second[f"head.{name}"])
    mean = (first[f"head.{name}"] + second[f"head.{name}"]) / 2
    assert torch.allclose(second[f"mean.{name}"], mean, atol=1e-7)
    written = load_file(tmp_path / "model.safetensors")[name]
    assert torch.equal(written, second[f"mean.{name}"].to(written.dtype))


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, eagle(), identity={"loss": "ce", "target": "a"}).run(lambda report: None)
    other = TrainSettings(**{**SETTINGS.__dict__, "lr": 0.1, "batch": 2})
    with pytest.raises(CheckpointError, match="another batch, lr"):
        trainer(tmp_path, eagle(), other)
    for another in (eagle("eagle"), parallel("medusa")):
        with pytest.raises(CheckpointError, match="another head"):
            trainer(tmp_path, another)
    with pytest.raises(CheckpointError, match="another loss, target"):
        trainer(tmp_path, eagle(), identity={"loss": "tv", "target": "b"})
    (tmp_path / CHECKPOINT_FILE).write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="damaged"):
        trainer(tmp_path, eagle())


@pytest.mark.parametrize(
    ("objective", "optimiser"),
    [
        pytest.param(lambda: eagle("eagle"), "adamw", marks=pytest.mark.thorough),
        pytest.param(eagle, "muon", marks=pytest.mark.thorough),
        (lambda: parallel("medusa"), "adamw"),
        pytest.param(lambda: parallel("blockwise"), "adamw", marks=pytest.mark.thorough),
    ],
)
def test_loss_falls_and_acceptance_rises(
    tmp_path: Path, objective: Callable[[], Objective], optimiser: OptimiserName
) -> None:
    """On the learnt text: a random target's other texts have too little in common with it."""
    settings = TrainSettings(
        steps=40, batch=8, micro_batch=8, evaluate_every=20, save_every=40, optimiser=optimiser, lr=1e-2
    )
    progress = trainer(tmp_path, objective(), settings, packs()[:8]).run()
    losses = [loss for _, loss in progress.losses]
    assert losses[-1] < 0.9 * losses[0]
    lengths = [length for _, length, _ in progress.held_out]
    assert progress.best == max(lengths) > lengths[0] + 0.1
    known = json.loads((tmp_path / "config.json").read_text())["headstart"]
    assert known["held_out_accepted_length"] == progress.best


@pytest.mark.thorough
def test_fifty_sequences_learnt_by_heart_are_accepted(tmp_path: Path) -> None:
    """Through training, files, drafter and engine: a head that knows the texts drafts them; an untrained one cannot."""
    # Short packs and a bold rate learn it in two thirds of the steps that long packs and a careful one take.
    learnt = packs(48)
    settings = TrainSettings(
        steps=150, batch=len(learnt), micro_batch=len(learnt), evaluate_every=150, save_every=150, lr=2e-2
    )
    objective = eagle()
    states = TargetStates(target().backend, tables().head, objective.head.config.taps, 1 << 26)
    save_head(objective.head, tmp_path / "untrained")
    Trainer(objective, states, learnt, (), settings, tmp_path / "trained").run()
    said = {}
    for name in ("untrained", "trained"):
        options = {"model": str(tmp_path / name), "draft_tokens": 3, "tree_nodes": 3, "width": 1, "precision": "fp32"}
        llm = LLM(target(), "eagle3", drafter_options=options, max_batch_size=50)
        llm.engine.limits = type(llm.engine.limits)(max_sequences=50, draft_rows=150, max_context=512)
        params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
        outputs = llm.generate([list(prompt) for prompt in prompts()], params)
        for output, document in zip(outputs, documents(), strict=True):
            assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == document.tokens.tolist()
        stats = [output.outputs[0].stats for output in outputs]
        said[name] = sum(each.accepted for each in stats) / sum(each.drafted for each in stats)
    assert said["untrained"] < 0.2
    assert said["trained"] > 0.9


def test_minutes_bound_the_steps(tmp_path: Path) -> None:
    settings = TrainSettings(steps=10_000, batch=4, evaluate_every=10_000, save_every=10_000)
    first = trainer(tmp_path, eagle(), settings, minutes=0.0)
    progress = first.run()
    assert progress.paced
    assert progress.step == progress.total_steps < 10
    assert trainer(tmp_path, eagle(), settings, minutes=5.0).run().step == progress.step


class Clock:
    """Stands still but where it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("headstart_train.trainer.time.perf_counter", lambda: self.now)


@pytest.mark.parametrize(("later", "steps"), [(1.0, 60), (1.05, 60), (2.0, 35), (0.5, 100)])
def test_steps_are_planned_anew_when_the_pace_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: float, steps: int
) -> None:
    """A minute of steps that take a second each, and from the tenth on as long as ``later`` says."""
    clock = Clock(monkeypatch)
    settings = TrainSettings(steps=100, batch=4, evaluate_every=1000, save_every=10)
    training = trainer(tmp_path, eagle(), settings, minutes=1.0)

    def timed() -> float:
        clock.now += 1.0 if training.progress.step < 10 else later
        return 1.0

    monkeypatch.setattr(training, "_step", timed)
    progress = training.run()
    assert abs(progress.step - steps) <= 3  # a plan may miss by a tenth
    assert progress.seconds <= 66.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch", 0),
        ("lr", -1.0),
        ("lr", math.nan),
        ("steps", 0),
        ("save_every", 0),
        ("average", 1.5),
        ("final_lr", -0.1),
    ],
)
def test_senseless_settings_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        TrainSettings(**{field: value})  # type: ignore[arg-type]


def test_no_text_is_refused(tmp_path: Path) -> None:
    objective = eagle()
    states = TargetStates(target().backend, tables().head, objective.head.config.taps, 0)
    with pytest.raises(ConfigError, match=r"no text to train on: .* length of a pack"):
        Trainer(objective, states, (), (), SETTINGS, tmp_path)


def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    objective = eagle()
    with torch.no_grad():
        objective.head.fc.weight.fill_(torch.nan)
    with pytest.raises(ConfigError, match="smaller lr"):
        trainer(tmp_path, objective, TrainSettings(steps=2, batch=4)).run()


def test_the_rate_rises_then_falls() -> None:
    rates = [learning_rate(step, 100, 0.04, 0.05) for step in range(100)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(later <= earlier for earlier, later in pairwise(rates[4:]))
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)
    assert learning_rate(99, 100, 0.04, 1.0) == 1.0


def test_progress_begins_at_nothing() -> None:
    assert (Progress().step, Progress().best) == (0, 0.0)
