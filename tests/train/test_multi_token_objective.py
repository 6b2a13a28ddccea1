"""Multi-token modules in training: alignment with drafting, where they begin, the loop, the folder that comes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from multi_token_models import write_tiny_mimo
from safetensors.torch import load_file
from tiny_checkpoint import write_tiny_model
from training_toys import documents, packs, prompts, tables, target, weights

from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.registry import chosen_drafter
from headstart.entrypoints.llm import LLM
from headstart.errors import CheckpointError, ConfigError
from headstart.loading.model import Model, load_model
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token_modules import MultiTokenModules, load_multi_token
from headstart.models.weight_loading import config_of, load_decoder
from headstart.passes.batch import FINAL_TAP
from headstart.sampling.params import SamplingParams
from headstart_train.checkpoints import CHECKPOINT_FILE
from headstart_train.making import HeadSettings
from headstart_train.module_start import first_module
from headstart_train.objectives.multi_token import MultiTokenObjective
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.recipe import train_head
from headstart_train.states import TargetStates
from headstart_train.text.text import TextSettings
from headstart_train.trainer import StepReport, Trainer, TrainSettings

VOCAB = 259
SETTINGS = TrainSettings(steps=6, batch=4, micro_batch=2, evaluate_every=3, save_every=2, lr=2e-3)


@cache
def mimo() -> Model:
    return load_model(write_tiny_mimo(Path(mkdtemp(prefix="headstart-mimo-"))), "fp32")


def fresh() -> MultiTokenModules:
    torch.manual_seed(5)
    return first_module(target(), weights(), None)


def objective(modules: MultiTokenModules | None = None) -> MultiTokenObjective:
    ids = torch.arange(VOCAB)
    return MultiTokenObjective(
        target().config, weights(), target().checkpoint, modules or fresh(), tables(), ids, depth=3, steps=3
    )


def states() -> TargetStates:
    return TargetStates(target().backend, tables().head, (FINAL_TAP,), 1 << 24)


def trainer(out: Path, learnt: MultiTokenObjective, settings: TrainSettings = SETTINGS) -> Trainer:
    return Trainer(learnt, states(), packs()[:8], packs()[:2], settings, out)


@pytest.mark.parametrize("own", [False, True])
def test_unrolled_it_says_what_it_says_when_it_drafts(own: bool) -> None:
    """Step for step along the true text, by the pass that serves: the target's own module, and a fresh one."""
    model = mimo() if own else target()
    its_weights = load_decoder(model.checkpoint, torch.float32)[1]
    its_tables = TargetTables(its_weights.embedding, its_weights.head.weight)
    torch.manual_seed(5)
    modules = first_module(model, its_weights, None)
    learnt = MultiTokenObjective(
        model.config, its_weights, model.checkpoint, modules, its_tables, torch.arange(VOCAB), depth=3
    )
    batch = TargetStates(model.backend, its_tables.head, (FINAL_TAP,), 1 << 24).batch(packs()[:2])
    with torch.no_grad():
        unrolled = Unrolled(learnt.head, learnt._embedding, learnt._rotary, batch)
        made = [unrolled.step() for _ in range(3)]
    running = MultiTokenPass(modules, its_tables, torch.float32)
    checked = 0
    for number, (pack, place) in enumerate(unrolled.places.nonzero().tolist()):
        if number % 7:
            continue
        position = int(batch.positions[pack, place])
        first = place - position
        read = batch.tokens[pack, first + 1 : place + 2].numpy().astype(np.int32)
        cache = running.new_cache()
        features = batch.final[pack, first : place + 1]
        state, logits = running.read(read, features, [DraftRows(cache, len(read))])
        for step in range(3):
            said = learnt._teacher.logits(made[step][number : number + 1])
            torch.testing.assert_close(logits, said, rtol=1e-3, atol=1e-3)
            token = batch.tokens[pack, place + 2 + step : place + 3 + step].numpy().astype(np.int32)
            if step == 2 or not len(token) or batch.documents[pack, place + 2 + step] != batch.documents[pack, place]:
                break
            paths = np.arange(step + 1, dtype=np.int32)[None]
            state, logits = running.step(token, state, [DraftRows(cache, 1, paths)])
            checked += 1
    assert checked > 20


def test_it_begins_as_the_targets_own_module_where_there_is_one(tmp_path: Path) -> None:
    its_weights = load_decoder(mimo().checkpoint, torch.float32)[1]
    begun = first_module(mimo(), its_weights, None)
    own = load_multi_token(mimo().checkpoint, mimo().config, torch.float32)
    assert own is not None
    torch.testing.assert_close(begun.modules[0].projection.weight, own.modules[0].projection.weight)
    its_tables = TargetTables(its_weights.embedding, its_weights.head.weight)
    learnt = MultiTokenObjective(mimo().config, its_weights, mimo().checkpoint, begun, its_tables, torch.arange(VOCAB))
    learnt.save(tmp_path, {"head": "mtp"})
    again = first_module(mimo(), its_weights, tmp_path)
    assert again.hidden_first == own.hidden_first
    for mine, theirs in ((again.modules[0], own.modules[0]),):
        torch.testing.assert_close(mine.projection.weight, theirs.projection.weight.bfloat16().float())
        torch.testing.assert_close(mine.final_norm.weight, theirs.final_norm.weight)
        mixed, wanted = mine.layer.mixer, theirs.layer.mixer
        torch.testing.assert_close(mixed.qkv.weight, wanted.qkv.weight.bfloat16().float())  # type: ignore[union-attr]
    assert set(load_file(tmp_path / "model.safetensors")) == {
        name for name in mimo().checkpoint.shapes() if ".mtp_layers." in name
    }
    assert json.loads((tmp_path / "config.json").read_text())["headstart"] == {"head": "mtp"}


def test_a_fresh_one_is_the_targets_last_layer_that_is_sure_of_nothing() -> None:
    begun = fresh()
    torch.testing.assert_close(begun.modules[0].layer.mlp_norm.weight, weights().layers[-1].mlp_norm.weight)  # type: ignore[union-attr]
    torch.testing.assert_close(begun.modules[0].final_norm.weight, 0.1 * weights().final_norm.weight)
    # The mean over the places of a cross entropy that knows nothing, over steps that count 1, 0.8 and 0.64.
    batch = states().batch(packs()[:3])
    most = sum(0.8**step * float(batch.guessed(step).sum() / batch.guessed(0).sum()) for step in range(3))
    assert objective(begun).loss(batch).item() == pytest.approx(most * torch.tensor(float(VOCAB)).log().item(), rel=0.1)


@pytest.mark.thorough
def test_loss_falls_and_the_drafter_accepts_more(tmp_path: Path) -> None:
    objective().save(tmp_path / "untrained", {})
    settings = TrainSettings(steps=40, batch=8, micro_batch=8, evaluate_every=20, save_every=40, lr=5e-3)
    progress = trainer(tmp_path / "trained", objective(), settings).run()
    assert progress.losses[-1][1] < progress.losses[0][1]
    lengths = [length for _, length, _ in progress.held_out]
    assert progress.best == max(lengths) > lengths[0] + 0.3
    accepted = []
    for name in ("untrained", "trained"):
        options = {"width": 1, "min_probability": 0.0, "draft_tokens": 3}
        llm = LLM(target(), "mtp", draft_model=tmp_path / name, drafter_options=options, max_batch_size=50)
        params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
        outputs = llm.generate([list(prompt) for prompt in prompts()[:6]], params)
        for output, document in zip(outputs, documents(), strict=False):
            assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == document.tokens.tolist()
        stats = [output.outputs[0].stats for output in outputs]
        accepted.append(sum(each.accepted for each in stats) / sum(each.rounds for each in stats))
    assert accepted[1] > accepted[0] + 0.3


@pytest.mark.thorough
def test_a_training_that_was_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    trainer(tmp_path / "whole", objective()).run()

    class Killed(Exception):
        pass

    def kill(report: StepReport) -> None:
        if report.progress.step == 3:
            raise Killed

    with pytest.raises(Killed):
        trainer(tmp_path / "killed", objective()).run(kill)
    trainer(tmp_path / "killed", objective()).run()
    for file in ("model.safetensors", CHECKPOINT_FILE):
        whole, killed = (load_file(tmp_path / name / file) for name in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole)


def test_the_folder_says_whose_module_it_is(tmp_path: Path) -> None:
    objective().save(tmp_path, {"head": "mtp"})
    checkpoint = open_checkpoint(tmp_path)
    assert config_of(checkpoint).num_layers == target().config.num_layers
    assert all(name.startswith("mtp.") for name in checkpoint.shapes())
    assert chosen_drafter(None, tmp_path) == "mtp"
    its_weights = load_decoder(mimo().checkpoint, torch.float32)[1]
    with pytest.raises(ConfigError, match="another shape than the target"):
        first_module(mimo(), its_weights, tmp_path)


def test_a_quantised_targets_module_is_not_said_to_be_quantised(tmp_path: Path) -> None:
    settings = {"quantization_config": {"quant_method": "fp8"}}
    told = {**target().checkpoint.metadata, **settings, "text_config": settings}
    checkpoint = replace(target().checkpoint, metadata=told)
    MultiTokenObjective(target().config, weights(), checkpoint, fresh(), tables(), torch.arange(VOCAB)).save(
        tmp_path, {}
    )
    assert load_multi_token(open_checkpoint(tmp_path), target().config, torch.float32) is not None


def test_what_cannot_be_begun_from_or_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no multi-token module to begin from"):
        first_module(target(), weights(), Path(target().name))
    with pytest.raises(CheckpointError, match="cannot be written"):
        MultiTokenObjective(
            replace(target().config, family="gpt2"), weights(), target().checkpoint, fresh(), tables(), torch.arange(9)
        )
    with pytest.raises(ConfigError, match="slots is a setting of"):
        train_head("mtp", target().name, tmp_path, head=HeadSettings(slots=3))


def test_a_window_is_refused_before_text_is_written(tmp_path: Path) -> None:
    model, out = write_tiny_model(tmp_path), tmp_path / "out"
    windowed = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 16}
    told = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(told | windowed))
    with pytest.raises(ConfigError, match="has a window"):
        train_head("mtp", model, out, text=TextSettings(tokens=400, answer_tokens=16), settings=SETTINGS)
    assert not out.exists() or not list(out.iterdir())
