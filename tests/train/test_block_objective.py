"""Block heads in training: the blocks that are learnt are those that are served, and they learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_toys import packs, tables, target

from headstart.backends.torch.block_pass import BlockPass
from headstart.backends.torch.head_kit import torch_kit
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.entrypoints.llm import LLM
from headstart.sampling.params import SamplingParams
from headstart_train.choices import LossName
from headstart_train.files.heads import save_head
from headstart_train.first_steps.block import block_config
from headstart_train.making import HeadName, HeadSettings, trunk_of
from headstart_train.objectives.block import BlockObjective, block_decay
from headstart_train.objectives.masks import Behind
from headstart_train.recipe import train_head
from headstart_train.states import Batch, TargetStates
from headstart_train.text.text import TextSettings
from headstart_train.trainer import StepReport, Trainer, TrainSettings
from headstart_train.warm_start import begin_from

VOCAB = 259
IDS = torch.tensor([token for token in range(VOCAB) if token % 3])


def block_head(slots: int = 3, scale: float | None = None, reduced: bool = False, **changes: object) -> BlockHead:
    torch.manual_seed(1)
    config = block_config(target().config, slots, 2, 0, len(IDS) if reduced else None)
    head = BlockHead(replace(config, **changes))  # type: ignore[arg-type]
    if reduced:
        head.d2t.copy_(IDS - torch.arange(len(IDS)))
    for parameter in head.parameters() if scale is not None else ():
        torch.nn.init.normal_(parameter, std=scale)
    return head


def objective_of(head: BlockHead) -> BlockObjective:
    return BlockObjective(head, tables(), IDS if head.config.reduced else torch.arange(VOCAB))


def states_of(head: BlockHead) -> TargetStates:
    return TargetStates(target().backend, tables().head, head.config.taps, 1 << 26)


def batch_of(head: BlockHead, count: int = 1) -> Batch:
    return states_of(head).batch(packs()[:count])


@pytest.mark.parametrize("changes", [{}, {"causal": True}, {"root_speaks": True}])
@torch.no_grad()
def test_a_block_in_training_is_the_block_that_is_served(changes: dict[str, bool]) -> None:
    """In a pack of several documents: it sees its own text up to its beginning, and itself."""
    head = block_head(scale=0.3, **changes)
    objective, batch = objective_of(head), batch_of(head)
    behind = Behind.places(batch, batch.guessed(0) & (batch.positions % 3 == 0))
    states = objective._states(batch, behind)
    served = BlockPass(head, tables(), torch_kit(torch.float32))
    served._embedding = tables().embedding  # as exact as in training
    for number, place in enumerate(behind.index[0].tolist()[:9:3]):
        first = place - int(batch.positions[0, place])
        cache = served.new_cache()
        served.read(batch.features[0, first : place + 1], [DraftRows(cache, place + 1 - first)])
        root = batch.tokens[0, place + 1 : place + 2].int().numpy()
        said, logits = served.block(root, [cache], head.config.slots)
        torch.testing.assert_close(states[0, 3 * number], said[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(head.logits(said[0], tables().head), logits[0], atol=1e-3, rtol=1e-3)


def test_later_guesses_count_less() -> None:
    """The paper's weights: exp(-(k - 1) / 4) for blocks of 8, / 5 for blocks of 10."""
    assert block_decay(8) == pytest.approx(torch.tensor(-1 / 4).exp().item())
    assert block_decay(10) == pytest.approx(torch.tensor(-1 / 5).exp().item())
    head = block_head(scale=0.3)
    batch = batch_of(head)
    losses = []
    for decay in (0.0, 1.0, 0.5):
        torch.manual_seed(3)
        loss = BlockObjective(head, tables(), torch.arange(VOCAB), decay=decay).loss(batch)
        losses.append(loss.item())
    assert losses[0] < losses[2] < losses[1]


@pytest.mark.parametrize("changes", [{}, {"markov_rank": 4, "confidence": True}], ids=str)
def test_dpace_weighs_each_guess_by_the_whole_block(changes: dict[str, int]) -> None:
    """A block whose first guesses are surely wrong owes the later ones half as much for each; its weights have no
    gradient."""
    head = block_head(scale=0.3, **changes)
    batch = batch_of(head)

    def parts(loss: LossName, decay: float) -> list[float]:
        found = []
        objective = BlockObjective(head, tables(), torch.arange(VOCAB), loss=loss, decay=decay)
        for depth in (1, objective.depth):
            objective.depth = depth
            torch.manual_seed(3)
            found.append(objective.loss(batch).item())
        return found

    first, whole = parts("dpace", 1.0)
    plain_first, plain_whole = parts("ce", 1.0)
    # A guess alone weighs between a half and one; in a block the first one carries those behind it as well.
    assert 0.5 * plain_first <= first <= plain_first
    assert first < whole
    assert whole != pytest.approx(plain_whole)
    objective = BlockObjective(head, tables(), torch.arange(VOCAB), loss="dpace")
    objective.loss(batch).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in head.parameters())


def test_blocks_at_any_spacing_teach_the_same_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all places at which the first block may begin."""
    head = block_head(scale=0.3)
    batch = batch_of(head)

    def losses(spacing: int) -> list[float]:
        objective = BlockObjective(head, tables(), torch.arange(VOCAB), spacing=spacing)
        found = []
        for first in range(spacing):
            monkeypatch.setattr(torch, "randint", lambda *_, first=first: torch.tensor(first))
            with torch.no_grad():
                found.append(objective.loss(batch).item())
        return found

    everywhere = losses(1)
    for spacing in (2, 5):
        each = losses(spacing)
        assert len(set(each)) == spacing
        assert sum(each) / spacing == pytest.approx(everywhere[0], rel=1e-5)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("changes", [{}, {"own_output": True}, {"markov_rank": 4}, {"confidence": True}], ids=str)
def test_the_loss_reaches_every_parameter(reduced: bool, changes: dict[str, int]) -> None:
    head = block_head(scale=0.3, reduced=reduced, **changes)
    objective_of(head).loss(batch_of(head)).backward()  # type: ignore[no-untyped-call]
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_gradients_are_those_of_the_loss() -> None:
    head = block_head(scale=0.3, reduced=True)
    objective, batch = objective_of(head), batch_of(head)

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return objective.loss(batch)

    loss().backward()  # type: ignore[no-untyped-call]
    weight = head.layers[0].self_attn.k_proj.weight
    assert weight.grad is not None
    with torch.no_grad():
        place, step = (1, 2), 1e-2
        weight[place] += step
        above = loss().item()
        weight[place] -= 2 * step
        below = loss().item()
    assert (above - below) / (2 * step) == pytest.approx(float(weight.grad[place]), rel=0.05, abs=1e-3)


@pytest.mark.thorough
def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(report: StepReport) -> None:
        if report.progress.step == 3:
            raise Killed

    def trainer(out: Path) -> Trainer:
        head = block_head(reduced=True)
        settings = TrainSettings(steps=5, batch=2, micro_batch=1, evaluate_every=3, save_every=2, optimiser="muon")
        return Trainer(objective_of(head), states_of(head), packs()[:6], packs()[8:], settings, out)

    trainer(tmp_path / "whole").run()
    with pytest.raises(Killed):
        trainer(tmp_path / "killed").run(kill)
    again = trainer(tmp_path / "killed")
    assert again.progress.step == 2
    again.run()
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.thorough
def test_sequences_learnt_by_heart_are_accepted(tmp_path: Path) -> None:
    """Through training, files, drafter and engine, in a batch; an untrained head cannot."""
    learnt = packs(48)[:8]
    known = [document for pack in learnt for document in pack.documents]
    settings = TrainSettings(
        steps=250, batch=len(learnt), micro_batch=len(learnt), evaluate_every=250, save_every=250, lr=3e-2
    )
    head = block_head()
    save_head(head, tmp_path / "untrained")
    Trainer(objective_of(head), states_of(head), learnt, (), settings, tmp_path / "trained").run()
    said = {}
    for name in ("untrained", "trained"):
        options = {"model": str(tmp_path / name), "tree_nodes": 3, "width": 1, "precision": "fp32"}
        llm = LLM(target(), "dflash", drafter_options=options | {"min_probability": 0.0}, max_batch_size=50)
        llm.engine.limits = type(llm.engine.limits)(max_sequences=50, draft_rows=150, max_context=512)
        params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
        prompts = [document.tokens[~document.answers].tolist() for document in known]
        outputs = llm.generate(prompts, params)
        for output, document in zip(outputs, known, strict=True):
            assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == document.tokens.tolist()
        stats = [output.outputs[0].stats for output in outputs]
        said[name] = sum(each.accepted for each in stats) / sum(each.drafted for each in stats)
    assert said["untrained"] < 0.2
    assert said["trained"] > 0.75


@pytest.mark.thorough
def test_a_training_begins_from_a_head_with_other_tokens_fewer_layers_and_shorter_blocks(tmp_path: Path) -> None:
    text = TextSettings(tokens=400, temperatures=(0.0,), answer_tokens=16, batch_size=6, directory=tmp_path / "text")
    settings = TrainSettings(steps=2, batch=2, micro_batch=1, evaluate_every=2, save_every=2)

    def trained(out: str, init: str | None, **head: int) -> BlockHead:
        wanted = HeadSettings(init=None if init is None else tmp_path / init, **head)  # type: ignore[arg-type]
        train_head("dflash", target().name, tmp_path / out, text=text, head=wanted, settings=settings, length=320)
        loaded = load_head(tmp_path / out, target().config)
        assert isinstance(loaded, BlockHead)
        return loaded

    first = trained("a", None, draft_vocab=40, slots=3, layers=1)
    grown = trained("b", "a", draft_vocab=60, slots=5, layers=2)
    assert (grown.config.slots, grown.config.num_layers) == (5, 2)
    assert grown.config.mask_token_id == first.config.mask_token_id
    assert set(first.target_ids.tolist()) <= set(grown.target_ids.tolist())
    assert not grown.config.causal
    changed = trained("c", "b", causal=True, markov_rank=4).config
    assert changed.causal
    assert changed.markov_rank == 4
    assert trained("d", "c", draft_vocab=70).config.markov_rank == 4


def test_confidence_learns_how_much_the_laws_have_in_common() -> None:
    """And nothing else is learnt for its sake."""
    changes = {"markov_rank": 4, "confidence": True, "confidence_reads_token": True}
    head = block_head(scale=0.3, **changes)
    objective, batch = objective_of(head), batch_of(head, 4)
    torch.manual_seed(2)
    objective.loss(batch).backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in head.named_parameters()}
    head.zero_grad()
    torch.manual_seed(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "_confidence", lambda states: torch.zeros(len(states)))
        objective.loss(batch).backward()  # type: ignore[no-untyped-call]
    for name, parameter in head.named_parameters():
        if not name.startswith("confidence_head."):
            torch.testing.assert_close(parameter.grad, gradients[name])
    own = list(head.confidence_head.parameters())
    optimiser = torch.optim.Adam(own, lr=0.05)
    for parameter in head.parameters():
        parameter.requires_grad_(any(parameter is each for each in own))
    losses = []
    for _ in range(40):
        torch.manual_seed(2)
        loss = objective_of(head).loss(batch)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert losses[-1] < losses[0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dspark", "jetspec"])
def test_kin_of_dflash_are_trained_by_their_names(name: HeadName, tmp_path: Path) -> None:
    text = TextSettings(tokens=300, temperatures=(0.0,), answer_tokens=16, batch_size=6, directory=tmp_path / "text")
    settings = TrainSettings(steps=1, batch=1, micro_batch=1, evaluate_every=1, save_every=1)
    wanted = HeadSettings(slots=4, layers=1, draft_vocab=0)
    train_head(name, target().name, tmp_path / "a", text=text, head=wanted, settings=settings, length=320)
    loaded = load_head(tmp_path / "a", target().config)
    assert isinstance(loaded, BlockHead)
    config = loaded.config
    extended = (config.markov_rank, config.confidence, config.confidence_reads_token, config.root_speaks)
    assert extended == ((64, True, True, True) if name == "dspark" else (0, False, False, False))
    assert config.causal == (name == "jetspec")
    assert config.slots == 4
    options = {"min_probability": 0.0, "precision": "fp32"}
    llm = LLM(target(), name, draft_model=tmp_path / "a", drafter_options=options)
    output = llm.generate([[65, 66, 67, 68]], SamplingParams(temperature=0, max_tokens=8))[0].outputs[0]
    assert output.stats.drafted > 0


def test_kin_begin_from_dflash(tmp_path: Path) -> None:
    told = trunk_of("dspark", HeadSettings(init=tmp_path, markov_rank=8))
    assert told == ("dflash", HeadSettings(init=tmp_path, markov_rank=8, confidence=True, root_speaks=True))
    known, head = block_head(), block_head(3, markov_rank=8, confidence=True, confidence_reads_token=True)
    begin_from(head, known)
    for name, parameter in known.named_parameters():
        assert torch.equal(head.get_parameter(name), parameter)


def test_a_markov_factor_learns_what_follows_what() -> None:
    """It begins with nothing, and lowers the loss of a head that is otherwise held fixed."""
    head = block_head(scale=0.3, reduced=True, markov_rank=16)
    head.markov_head.begin()
    without = block_head(scale=0.3, reduced=True)
    objective, batch = objective_of(head), batch_of(head, 4)
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(name.startswith("markov_head."))
        if not name.startswith("markov_head."):
            parameter.data.copy_(dict(without.named_parameters())[name])
    optimiser = torch.optim.Adam([p for p in head.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(20):
        torch.manual_seed(2)
        loss = objective_of(head).loss(batch)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    torch.manual_seed(2)
    assert losses[0] == pytest.approx(objective_of(without).loss(batch).item())
    assert losses[-1] < 0.9 * losses[0]
    assert objective.head.markov_head.markov_w2.weight.any()
