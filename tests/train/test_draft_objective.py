"""Draft models distilled from some of the target's layers: alignment, the loop, and the folder that comes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from thinning import thorough_but
from training_toys import documents, packs, prompts, tables, target, weights
from transformers import AutoModelForCausalLM

from headstart.entrypoints.llm import LLM
from headstart.errors import CheckpointError
from headstart.models.layer_selection import select_layers
from headstart.passes.batch import FINAL_TAP
from headstart.sampling.params import SamplingParams
from headstart_train.checkpoints import CHECKPOINT_FILE
from headstart_train.choices import LossName
from headstart_train.objectives.draft import DraftModelObjective
from headstart_train.states import TargetStates
from headstart_train.trainer import StepReport, Trainer, TrainSettings

VOCAB = 259
SETTINGS = TrainSettings(steps=6, batch=4, micro_batch=2, evaluate_every=3, save_every=2, lr=2e-3)


def draft_model(*layers: int, loss: LossName = "ce") -> DraftModelObjective:
    small, its_weights = select_layers(target().config, weights(), layers)
    return DraftModelObjective(small, its_weights, tables(), torch.arange(VOCAB), target().checkpoint, loss=loss)


def states() -> TargetStates:
    return TargetStates(target().backend, tables().head, (FINAL_TAP,), 1 << 24)


def trainer(out: Path, objective: DraftModelObjective, settings: TrainSettings = SETTINGS) -> Trainer:
    return Trainer(objective, states(), packs()[:8], packs()[:2], settings, out)


def test_the_target_itself_is_always_right() -> None:
    """All layers: each guess of each depth is the target's favourite, and no loss is below its law's entropy."""
    objective, batch = draft_model(0, 1, 2), states().batch(packs()[:3])
    found = objective.held_out(batch)
    possible = [int(batch.guessed(depth).sum()) for depth in range(objective.depth)]
    # States are remembered in bfloat16: a tie or two may fall the other way.
    assert all(count >= 0.97 * all_ for count, all_ in zip(found.right.tolist(), possible, strict=True))
    assert found.accepted[0] >= 0.97 * possible[0]
    whole, part = (draft_model(*layers).loss(batch).item() for layers in ((0, 1, 2), (0, 2)))
    law = torch.softmax(batch.final @ tables().head.T, -1)
    entropy = torch.special.entr(law).sum(-1)
    behind = torch.cat((entropy[:, 1:], entropy[:, -1:]), dim=1)[batch.guessed(0)].mean().item()
    assert whole == pytest.approx(behind, rel=1e-3)
    assert part > whole


@pytest.mark.parametrize("loss", thorough_but(["ce"], ["ce", "lk"]))
def test_loss_falls_and_the_drafter_accepts_more(tmp_path: Path, loss: LossName) -> None:
    draft_model(0, 2).save(tmp_path / "untrained", {})
    settings = TrainSettings(steps=40, batch=8, micro_batch=8, evaluate_every=20, save_every=40, lr=5e-3)
    progress = trainer(tmp_path / "trained", draft_model(0, 2, loss=loss), settings).run()
    assert progress.losses[-1][1] < progress.losses[0][1]
    lengths = [length for _, length, _ in progress.held_out]
    assert progress.best == max(lengths) > lengths[0] + 0.3
    accepted = []
    for name in ("untrained", "trained"):
        llm = LLM(target(), "draft-model", draft_model=tmp_path / name, draft_tokens=3, max_batch_size=50)
        params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
        outputs = llm.generate([list(prompt) for prompt in prompts()[:6]], params)
        for output, document in zip(outputs, documents(), strict=False):
            assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == document.tokens.tolist()
        stats = [output.outputs[0].stats for output in outputs]
        accepted.append(sum(each.accepted for each in stats) / sum(each.rounds for each in stats))
    assert accepted[1] > accepted[0] + 0.3


def test_the_folder_is_a_model_for_transformers_too(tmp_path: Path) -> None:
    objective = draft_model(0, 2)
    trainer(tmp_path, objective).run()
    known = json.loads((tmp_path / "config.json").read_text())
    assert known["headstart"]["held_out_accepted_length"] > 1
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = documents()[0].tokens.tolist()
    llm = LLM(str(tmp_path), "none", precision="fp32")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ours = llm.generate(tokens, params)[0].outputs[0].token_ids
    said = theirs.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert said[0, len(tokens) :].tolist() == ours


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def kill(report: StepReport) -> None:
        if report.progress.step == 3:
            raise Killed

    trainer(tmp_path / "whole", draft_model(0, 2)).run()
    with pytest.raises(Killed):
        trainer(tmp_path / "killed", draft_model(0, 2)).run(kill)
    again = trainer(tmp_path / "killed", draft_model(0, 2))
    assert again.progress.step == 2
    again.run()
    for name in (CHECKPOINT_FILE, "model.safetensors"):
        whole, killed = (load_file(tmp_path / run / name) for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole)


def test_a_family_that_cannot_be_written_is_refused_before_training() -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        DraftModelObjective(
            replace(target().config, family="gpt2"), weights(), tables(), torch.arange(VOCAB), target().checkpoint
        )
