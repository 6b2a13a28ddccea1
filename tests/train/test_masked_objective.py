"""P-EAGLE in training: the masks that are learnt are those that are served, and a start from EAGLE-3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_toys import packs, tables, target

from headstart.backends.torch.eagle_pass import EaglePass
from headstart.backends.torch.masked_pass import MaskedPass
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError
from headstart.sampling.params import SamplingParams
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.making import HeadSettings
from headstart_train.objectives.eagle import EagleObjective
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.recipe import train_head
from headstart_train.states import Batch, TargetStates
from headstart_train.text.text import TextSettings
from headstart_train.trainer import TrainSettings
from headstart_train.warm_start import begin_from

VOCAB = 259


def masked_head(slots: int = 3, scale: float | None = 0.3) -> EagleHead:
    torch.manual_seed(1)
    head = EagleHead(eagle_config(target().config, slots=slots, mask_token_id=1))
    for parameter in head.parameters() if scale is not None else ():
        torch.nn.init.normal_(parameter, std=scale)
    return head


def batch_of(head: EagleHead, count: int = 1) -> Batch:
    return TargetStates(target().backend, tables().head, head.config.taps, 1 << 26).batch(packs()[:count])


@torch.no_grad()
def test_masks_in_training_are_the_masks_that_are_served() -> None:
    head = masked_head()
    batch = batch_of(head)
    objective = EagleObjective(head, tables(), torch.arange(VOCAB))
    unrolled = Unrolled(head, tables().embedding, objective._rotary, batch, mask=objective._mask())
    everywhere = unrolled.places.clone()
    logits = [head.logits(unrolled.step(masked=False))]
    for _ in range(2):
        unrolled.drop(0.9)
        logits.append(head.logits(unrolled.step(masked=True)))
    assert 0 < int(unrolled.places.sum()) < int(everywhere.sum())
    served = MaskedPass(head, tables(), torch.float32)
    left = unrolled.places[everywhere].nonzero().squeeze(1)
    for number, place in enumerate(unrolled.places[0].nonzero().squeeze(1).tolist()[:12:3]):
        first = place - int(batch.positions[0, place])
        cache = served.new_cache()
        tokens = batch.tokens[0, first + 1 : place + 2].int().numpy()
        rows = [DraftRows(cache, place + 1 - first)]
        _, said = served.guess(tokens, batch.features[0, first : place + 1], rows, 3)
        assert cache.rows == place + 1 - first
        torch.testing.assert_close(logits[0][left[3 * number]], said[0, 0], atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(logits[2][3 * number], said[0, 2], atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_masks_stand_behind_steps_that_were_fed_back() -> None:
    """One true step, one of the head's own, then a mask: as an EAGLE-3 pass and a mask's rows behind it would be."""
    head = masked_head()
    batch = batch_of(head)
    objective = EagleObjective(head, tables(), torch.arange(VOCAB), steps=2)
    unrolled = Unrolled(head, tables().embedding, objective._rotary, batch, mask=objective._mask())
    everywhere = unrolled.places.clone()
    unrolled.step(masked=False)
    unrolled.drop(0.5)
    logits = [head.logits(unrolled.step(masked=False)), head.logits(unrolled.step(masked=True))]
    left = unrolled.places[everywhere].nonzero().squeeze(1)
    assert len(left) < int(everywhere.sum())
    served = EaglePass(head, tables(), torch.float32)
    mask = head.fuse(head.mask_hidden[0])
    for number, place in enumerate(unrolled.places[0].nonzero().squeeze(1).tolist()[:9:4]):
        first = place - int(batch.positions[0, place])
        cache, tokens = served.new_cache(), batch.tokens[0].int().numpy()
        state, _ = served.read(
            tokens[first + 1 : place + 2], batch.features[0, first : place + 1], [DraftRows(cache, place + 1 - first)]
        )
        rows = [(tokens[place + 2 : place + 3], state), (np.array([head.config.mask_token_id], np.int32), mask)]
        for level, (token, states) in enumerate(rows):
            path = np.arange(level + 1, dtype=np.int32)[None]
            _, said = served.step(token, states, [DraftRows(cache, 1, path)])
            torch.testing.assert_close(logits[level][4 * number], said[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("steps", [1, 3])
def test_how_many_steps_masks_stand_behind_is_drawn(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    step = Unrolled.step

    def told(unrolled: Unrolled, masked: bool) -> torch.Tensor:
        asked.append(masked)
        return step(unrolled, masked)

    monkeypatch.setattr(Unrolled, "step", told)
    head = masked_head(slots=4)
    batch, objective = batch_of(head), EagleObjective(head, tables(), torch.arange(VOCAB), steps=steps)
    found = set()
    for seed in range(12):
        torch.manual_seed(seed)
        asked.clear()
        objective.loss(batch)
        assert len(asked) == 4
        assert asked == sorted(asked)
        found.add(asked.index(True))
    assert found == set(range(1, steps + 1))


def test_the_loss_reaches_every_parameter() -> None:
    head = masked_head()
    EagleObjective(head, tables(), torch.arange(VOCAB)).loss(batch_of(head)).backward()  # type: ignore[no-untyped-call]
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@torch.no_grad()
def test_dropped_places_leave_the_loss_what_it_is_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    head = masked_head()
    batch, objective = batch_of(head, 4), EagleObjective(head, tables(), torch.arange(VOCAB))
    losses = [objective.loss(batch).item() for _ in range(12)]
    monkeypatch.setattr(Unrolled, "drop", lambda self, kept: 1.0)
    whole = objective.loss(batch).item()
    assert min(losses) != max(losses)
    assert sum(losses) / len(losses) == pytest.approx(whole, rel=0.03)


@torch.no_grad()
def test_it_begins_with_the_first_guess_of_an_eagle3_head() -> None:
    torch.manual_seed(4)
    known = EagleHead(eagle_config(target().config))
    head = masked_head(scale=None)
    begin_from(head, known)
    for name, parameter in known.named_parameters():
        assert torch.equal(head.get_parameter(name), parameter), name


@pytest.mark.thorough
def test_a_trained_head_guesses_for_its_target(tmp_path: Path) -> None:
    """From an EAGLE-3 head to P-EAGLE, through files, as the command line does it."""
    start, out = tmp_path / "eagle3", tmp_path / "p-eagle"
    save_head(EagleHead(eagle_config(target().config)), start)
    text = TextSettings(tokens=300, temperatures=(0.0,), answer_tokens=16, batch_size=6, directory=tmp_path / "text")
    settings = TrainSettings(steps=2, batch=2, micro_batch=1, evaluate_every=2, save_every=2)
    wanted = HeadSettings(slots=4, init=start)
    train_head("p-eagle", target().name, out, text=text, head=wanted, settings=settings, length=320)
    head = load_head(out, target().config)
    assert head.kind == "p-eagle"
    assert isinstance(head, EagleHead)
    assert head.config.slots == 4
    options = {"min_probability": 0.0, "precision": "fp32"}
    prompts, params = [[65, 66, 67, 68]], SamplingParams(temperature=0, max_tokens=12)
    llm = LLM(target(), "p-eagle", draft_model=out, drafter_options=options)
    output = llm.generate(prompts, params)[0].outputs[0]
    assert output.token_ids == LLM(target(), "none").generate(prompts, params)[0].outputs[0].token_ids
    assert output.stats.drafted > 0


def test_more_slots_than_a_pass_may_have_are_refused() -> None:
    config = eagle_config(target().config)
    with pytest.raises(ConfigError, match="guess 1 to 64"):
        replace(config, slots=65)
