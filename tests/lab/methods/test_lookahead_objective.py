"""PaSS's training: its rows are those of the pass that serves, and only the embeddings learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from training_toys import documents, packs, prompts, tables, target, weights
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel

from headstart.backends.torch.backend import TorchBackend
from headstart.drafting.heads.tables import TargetTables
from headstart.entrypoints.llm import LLM
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import FINAL_TAP, RowInputs
from headstart.passes.runner import ModelRunner, Span
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_lab.methods.lookahead_embeddings.training import LookaheadObjective
from headstart_train.checkpoints import CHECKPOINT_FILE
from headstart_train.decoder.trainable import TrainableDecoder
from headstart_train.objectives.masks import Behind
from headstart_train.states import TargetStates
from headstart_train.trainer import StepReport, Trainer, TrainSettings

VOCAB = 259
SETTINGS = TrainSettings(steps=6, batch=4, micro_batch=2, evaluate_every=3, save_every=2, lr=1e-2)


def objective(slots: int = 3) -> LookaheadObjective:
    torch.manual_seed(0)
    head = LookaheadEmbeddings(slots, 32)
    head.begin_like(tables().embedding, 1.0)
    decoder = TrainableDecoder(target().config, weights(), frozen=True)
    return LookaheadObjective(head, decoder, tables(), torch.arange(VOCAB))


def states() -> TargetStates:
    return TargetStates(target().backend, tables().head, (FINAL_TAP,), 1 << 24)


def trainer(out: Path, settings: TrainSettings = SETTINGS) -> Trainer:
    return Trainer(objective(), states(), packs()[:8], packs()[:2], settings, out)


def gemma3() -> tuple[ModelConfig, DecoderWeights]:
    """Sliding windows shorter than the text, two ropes, scaled embeddings."""
    config = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    return loaded(Gemma3ForCausalLM(config))


def gpt2() -> tuple[ModelConfig, DecoderWeights]:
    """Learned positions."""
    return loaded(GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)))


def loaded(model: torch.nn.Module) -> tuple[ModelConfig, DecoderWeights]:
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)  # type: ignore[operator]
        return load_decoder(open_checkpoint(directory), torch.float32)


def served(config: ModelConfig, weights: DecoderWeights, text: list[int], values: Tensor) -> Tensor:
    """Final states of look-ahead rows behind a text, as a pass of the engine computes them."""
    runner = ModelRunner(TorchBackend(config, weights), 256)
    runner.cache.add(0)
    with runner.cache.reserve({0: len(text)}):
        runner.forward([Span.chain(0, text, "none")])
        runner.cache.commit(0, range(len(text)))
    rows = np.arange(len(values), dtype=np.int32)
    span = Span(0, np.zeros_like(rows), rows - 1, inputs=RowInputs(rows, values))
    with runner.cache.reserve({0: len(rows)}):
        return torch.from_numpy(runner.forward([span], (FINAL_TAP,))[0].hidden[FINAL_TAP])


@pytest.mark.parametrize("load", [lambda: (target().config, weights()), gemma3, gpt2], ids=["llama", "gemma3", "gpt2"])
def test_rows_in_training_are_the_rows_of_a_pass(load: Callable[[], tuple[ModelConfig, DecoderWeights]]) -> None:
    """Behind some places of packs of several documents, the states of every slot equal those that are served."""
    torch.manual_seed(2)
    config, its_weights = load()
    head = LookaheadEmbeddings(3, 32)
    head.begin_like(its_weights.embedding, config.embedding.scale)
    its_tables = TargetTables(its_weights.embedding, its_weights.head.weight)
    learning = LookaheadObjective(
        head, TrainableDecoder(config, its_weights, frozen=True), its_tables, torch.arange(VOCAB)
    )
    members = packs()[:2]
    batch = states().batch(members)
    wanted = batch.guessed(0) & (batch.positions % 5 == 0)
    wanted[1, 40:] = False  # packs with different numbers of places
    behind = Behind.places(batch, wanted)
    with torch.no_grad():
        found = learning._states(batch, behind)
    checked = 0
    for pack, member in enumerate(members):
        first = 0
        for document in member.documents:
            for place in range(len(document.tokens)):
                here = torch.zeros_like(wanted)
                here[pack, first + place] = True
                if not (wanted & here).any() or checked >= 9:
                    continue
                checked += 1
                text = document.tokens[: place + 1].tolist()
                with torch.no_grad():
                    expected = served(config, its_weights, text, head.embeddings.detach())
                for slot in range(3):
                    said = behind.at(found[:, :, slot], wanted & here)[0]
                    torch.testing.assert_close(said, expected[slot], rtol=1e-4, atol=1e-4)
            first += len(document.tokens)
    assert checked == 9


def test_only_the_embeddings_learn_all_of_them() -> None:
    learning = objective()
    learning.loss(states().batch(packs()[:2])).backward()
    assert learning.head.embeddings.grad is not None
    assert learning.head.embeddings.grad.any(-1).all()
    assert all(each.grad is None for each in learning._decoder.parameters())


def test_places_change_from_step_to_step_and_weigh_as_all_do() -> None:
    """Over all offsets the mean loss is that of every place, whatever the spacing."""
    batch, learning = states().batch(packs()[:2]), objective(slots=2)
    values = []
    for seed in range(12):
        torch.manual_seed(seed)
        values.append(learning.loss(batch).item())
    assert len(set(values)) == 4
    law = torch.softmax(batch.final @ tables().head.T, -1)
    behind = Behind.places(batch, batch.guessed(0))
    with torch.no_grad():
        found, expected = learning._states(batch, behind), 0.0
        for slot in range(2):
            places = batch.guessed(slot)
            pack, position = places.nonzero(as_tuple=True)
            said = torch.log_softmax(behind.at(found[:, :, slot], places) @ tables().head.T, -1)
            expected -= 0.8**slot * float((law[pack, position + 1 + slot] * said).sum() / batch.guessed(0).sum())
    assert sum(set(values)) / 4 == pytest.approx(expected, rel=1e-4)


@pytest.mark.thorough
def test_loss_falls_and_the_drafter_accepts_more(tmp_path: Path) -> None:
    objective().save(tmp_path / "untrained", {})
    settings = TrainSettings(steps=24, batch=8, micro_batch=8, evaluate_every=12, save_every=24, lr=1e-1)
    progress = trainer(tmp_path / "trained", settings).run()
    assert progress.losses[-1][1] < progress.losses[0][1]
    lengths = [length for _, length, _ in progress.held_out]
    assert progress.best == max(lengths) > lengths[0]
    accepted = []
    for name in ("untrained", "trained"):
        llm = LLM(target(), "pass", draft_model=tmp_path / name, max_batch_size=8)
        llm.engine.limits = type(llm.engine.limits)(max_sequences=8, draft_rows=120, max_context=512)
        params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
        outputs = llm.generate([list(prompt) for prompt in prompts()[:8]], params)
        for output, document in zip(outputs, documents(), strict=False):
            assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == document.tokens.tolist()
        accepted.append(sum(output.outputs[0].stats.accepted for output in outputs))
    assert accepted[1] > accepted[0]


class Killed(Exception):
    pass


@pytest.mark.thorough
def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """The places it draws included."""

    def kill(report: StepReport) -> None:
        if report.progress.step == 3:
            raise Killed

    trainer(tmp_path / "whole").run()
    with pytest.raises(Killed):
        trainer(tmp_path / "killed").run(kill)
    torch.rand(7)
    trainer(tmp_path / "killed").run()
    for name in (CHECKPOINT_FILE, "model.safetensors"):
        whole, killed = (load_file(tmp_path / run / name) for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole)
