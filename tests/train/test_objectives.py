"""What is trained is what will be served: rows, tokens, positions and masks of the unrolled steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_checkpoint import write_tiny_model
from training_toys import documents, packs, tables, target

from headstart.backends.torch.eagle_pass import EaglePass
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.loading.model import load_model
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import FINAL_TAP
from headstart.passes.runner import ModelRunner, Span
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_lab.methods.medusa.training import ParallelObjective
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.objectives.eagle import EagleObjective
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.states import Batch, TargetStates
from headstart_train.text.corpus import Document
from headstart_train.text.packs import Pack


def random_head(variant: str = "eagle3", **changes: object) -> EagleHead:
    torch.manual_seed(1)
    head = EagleHead(replace(eagle_config(target().config, variant), **changes))  # type: ignore[arg-type]
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head


def batch_of(taps: tuple[int, ...], *members: Pack) -> Batch:
    return TargetStates(target().backend, tables().head, taps, 0).batch(members)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_output": False, "fc_norm": False, "norm_before_residual": True},
        {"num_layers": 2},
        {"windows": (4,)},
        {"num_layers": 2, "windows": (0, 5)},
    ],
)
def test_unrolled_steps_are_the_rows_of_a_draft(steps: int, changes: dict[str, object]) -> None:
    """Step j at place i equals the j-th row of a draft behind the true rows up to i, in a pack of several documents."""
    head = random_head(**changes)
    pack = packs()[0]
    batch = batch_of(head.config.taps, pack)
    rotary = RotaryTable(head.config.rope, torch.float32)
    unrolled = Unrolled(head, tables().embedding, rotary, batch, windows=head.config.windows)
    with torch.no_grad():
        rows_said = [unrolled.step() for _ in range(steps)]
    outputs = [torch.full((*unrolled.places.shape, rows.shape[-1]), torch.nan) for rows in rows_said]
    for output, rows in zip(outputs, rows_said, strict=True):
        output[unrolled.places] = rows

    first = len(pack.documents[0].tokens)
    tokens = pack.documents[1].tokens.astype(np.int32)
    served = EaglePass(head, tables(), torch.float32)
    features = batch.features[0, first : first + len(tokens)]
    for place in unrolled.places[0, first : first + len(tokens)].nonzero().flatten().tolist()[:8:4]:
        cache = served.new_cache()
        state, logits = served.read(tokens[1 : place + 2], features[: place + 1], [DraftRows(cache, place + 1)])
        for step in range(steps):
            if step:
                path = np.arange(step, dtype=np.int32)[None]
                behind = tokens[place + 1 + step : place + 2 + step]
                state, logits = served.step(behind, state, [DraftRows(cache, 1, path)])
            trained = outputs[step][0, first + place]
            with torch.no_grad():
                torch.testing.assert_close(head.feed_back(trained), state[0], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(head.logits(trained, tables().head), logits[0], atol=1e-4, rtol=1e-4)


def test_the_targets_states_are_those_of_each_document_alone() -> None:
    pack = packs()[0]
    together = batch_of((1, FINAL_TAP), pack)
    first = 0
    for document in pack.documents:
        alone = batch_of((1, FINAL_TAP), Pack((document,)))
        place = slice(first, first + len(document.tokens))
        torch.testing.assert_close(together.features[0, place], alone.features[0], atol=2e-2, rtol=2e-2)
        assert together.positions[0, place].tolist() == list(range(len(document.tokens)))
        first = place.stop


def test_states_are_the_same_kept_or_not() -> None:
    kept, not_kept = (TargetStates(target().backend, tables().head, (1,), size) for size in (1 << 20, 0))
    members = packs()[:3]
    for states in (kept, not_kept):
        states.batch(members)
    first, second = kept.batch(members[::-1]), not_kept.batch(members[::-1])
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.final, second.final)


def test_states_in_files_serve_other_runs_and_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(taps: tuple[int, ...]) -> TargetStates:
        return TargetStates(target().backend, tables().head, taps, 1 << 20, directories=[tmp_path])

    members = packs()[:3]
    first = states((0, 1)).batch(members)
    states((1,)).batch(packs()[3:4])
    monkeypatch.setattr(type(target().backend), "forward", None)
    again = states((0, 1)).batch(members)
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.favourites, again.favourites)
    fewer = states((FINAL_TAP,)).batch(members)
    assert torch.equal(fewer.features, first.final)
    # What another head left out must be computed.
    with pytest.raises(TypeError):
        states((0,)).batch(packs()[3:4])


def test_states_kept_for_answers_serve_a_training_that_learns_prompts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's favourites at further places are found without another pass."""

    def states() -> TargetStates:
        return TargetStates(target().backend, tables().head, (1,), 1 << 20, directories=[tmp_path])

    answers = packs()[:2]
    whole = [pack.learnt_whole() for pack in answers]
    fresh = TargetStates(target().backend, tables().head, (1,), 0).batch(whole)
    few = states().batch(answers)
    monkeypatch.setattr(type(target().backend), "forward", None)
    again = states().batch(whole)
    assert (few.favourites >= 0).sum() < (fresh.favourites >= 0).sum()
    assert torch.equal(again.favourites, fresh.favourites)
    assert torch.equal(again.final, fresh.final)


def test_states_kept_for_prompts_too_are_those_of_a_training_from_answers(tmp_path: Path) -> None:
    def states(*directories: Path) -> TargetStates:
        return TargetStates(target().backend, tables().head, (1,), 1 << 20, directories=directories)

    answers = packs()[:2]
    states(tmp_path).batch([pack.learnt_whole() for pack in answers])
    assert torch.equal(states(tmp_path).batch(answers).favourites, states().batch(answers).favourites)


def test_a_native_targets_favourites_come_with_its_pass_and_serve_every_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what it would say greedily, kept for all places whichever are learnt."""
    native = load_model(write_tiny_model(tmp_path, head_dim=32), "fp32")
    if not native.backend.finds_best:
        pytest.skip("there is no native pass on this machine")
    head = load_decoder(native.checkpoint, torch.float32)[1].head.weight
    monkeypatch.setattr(TargetStates, "_favourites", None)

    def batch(pack: Pack) -> Batch:
        return TargetStates(native.backend, head, (1,), 1 << 20, directories=[tmp_path / "states"]).batch([pack])

    pack = packs()[0]
    few, first = batch(pack), 0
    monkeypatch.setattr(type(native.backend), "forward", None)
    every = batch(pack.learnt_whole())
    monkeypatch.undo()
    runner = ModelRunner(native.backend, 512)
    for number, document in enumerate(pack.documents):
        runner.cache.add(number)
        with runner.cache.reserve({number: len(document.tokens)}):
            (output,) = runner.forward([Span.chain(number, document.tokens.tolist())])
        expected = output.logits.argmax(-1)
        expected[-1] = -1
        place = slice(first, first + len(document.tokens))
        assert every.favourites[0, place].tolist() == expected.tolist()
        said = torch.from_numpy(np.append(document.answers[1:], False))
        assert few.favourites[0, place].tolist() == expected.where(said, -1).tolist()
        first = place.stop


def test_dropout_is_for_learning_alone_and_follows_the_seed() -> None:
    head = random_head()
    ids = torch.arange(target().config.vocab_size)
    without, with_it = (EagleObjective(head, tables(), ids, steps=2, dropout=share) for share in (0.0, 0.5))
    batch = batch_of(head.config.taps, *packs()[:2])

    def loss(objective: EagleObjective, seed: int) -> float:
        torch.manual_seed(seed)
        return objective.loss(batch).item()

    assert loss(with_it, 1) == loss(with_it, 1) != loss(with_it, 2)
    assert loss(without, 1) == loss(without, 2) != loss(with_it, 1)
    assert with_it.held_out(batch).accuracy == without.held_out(batch).accuracy


def test_packs_of_different_text_are_not_taken_for_each_other() -> None:
    """Training and held-out text share one memory."""
    states = TargetStates(target().backend, tables().head, (1,), 1 << 20)
    first, second = (states.batch([Pack((document,))]) for document in documents()[:2])
    assert not torch.equal(first.final, second.final)


def test_the_target_of_depth_j_at_place_i_is_token_i_plus_2_plus_j() -> None:
    """A guesser that knows the text is always right; each depth's losses meet the law that said that token."""
    batch = batch_of((FINAL_TAP,), *packs()[:2])
    ids = torch.arange(target().config.vocab_size)
    teacher = Teacher(tables(), ids)
    chains = Chains(teacher, batch)
    losses = StepLosses(torch.nn.Identity(), teacher, batch, "ce", 1.0)
    places = chains.places
    for depth in range(3):
        ahead = torch.zeros_like(batch.tokens)
        ahead[:, : -2 - depth] = batch.tokens[:, 2 + depth :]
        logits = 50 * torch.nn.functional.one_hot(ahead, len(ids)).float()
        chains.judge(depth, logits[places])
        final = torch.nn.functional.pad(batch.final, (0, 0, 0, 1 + depth))[:, 1 + depth :]
        law = teacher.logits(final.flatten(0, 1)).softmax(-1)
        wanted = losses.places(depth)
        expected = -(law.view(*wanted.shape, -1)[wanted] * logits[wanted].log_softmax(-1)).sum() / places.sum()
        torch.testing.assert_close(losses.loss(depth, wanted, logits[wanted], torch.nn.Identity()), expected)
    result = chains.result()
    # Only the ends of documents stop a chain. The text is greedy, so its tokens are the favourites too, but for ties
    # in the rounded states.
    spans = [int(document.answers.sum()) for pack in packs()[:2] for document in pack.documents]
    possible = [sum(span - depth for span in spans) for depth in range(3)]
    assert result.rows == possible[0]
    assert result.accepted.tolist() == possible
    assert all(right >= 0.98 * count for right, count in zip(result.right.tolist(), possible, strict=True))


def test_nothing_is_learnt_from_prompts_and_beyond_documents() -> None:
    batch = batch_of((FINAL_TAP,), packs()[0])
    teacher = Teacher(tables(), torch.arange(target().config.vocab_size))
    losses = StepLosses(torch.nn.Identity(), teacher, batch, "ce", 1.0)
    first = 0
    for document in packs()[0].documents:
        length, prompt = len(document.tokens), int((~document.answers).sum())
        for depth in (0, 2):
            learnt = losses.places(depth)[0, first : first + length].nonzero().flatten().tolist()
            assert learnt == [i for i in range(length) if prompt <= i + 2 and i + 2 + depth < length]
        first += length


def test_what_the_draft_cannot_say_is_not_learnt() -> None:
    batch = batch_of((FINAL_TAP,), packs()[0])
    ids = torch.arange(0, target().config.vocab_size, 2)
    teacher = Teacher(tables(), ids)
    losses = StepLosses(torch.nn.Identity(), teacher, batch, "ce", 1.0)
    said = (losses.places(0).nonzero()[:, 1] + 2).tolist()
    assert said
    assert all(int(batch.tokens[0, place]) % 2 == 0 for place in said)


def test_counts_of_held_out_text() -> None:
    found = HeldOut(8, torch.tensor([6, 4]), torch.tensor([6, 3])) + HeldOut(
        2, torch.tensor([2, 0]), torch.tensor([1, 0])
    )
    assert found.accepted_length == 2.0
    assert found.accuracy == [0.8, 0.4]


def test_a_text_of_one_token_answers() -> None:
    """Nothing to guess at some depths, or at all, is no error."""
    tokens = np.asarray([40, 41, 42], dtype=np.int32)
    pack = Pack((Document(tokens, np.array([False, False, True])),))
    head = random_head()
    objective = EagleObjective(head, tables(), torch.arange(target().config.vocab_size))
    batch = batch_of(head.config.taps, pack)
    assert torch.isfinite(objective.loss(batch))
    assert objective.held_out(batch).rows == 1


def test_parallel_heads_learn_only_where_the_text_goes_on_greedily() -> None:
    """They do not read the token behind their state: where it was drawn, none of them can foresee what follows."""
    vocab = target().config.vocab_size
    batch = batch_of((FINAL_TAP,), packs()[0])
    drawn = int(batch.answers[0].nonzero()[4])
    tokens = batch.tokens.clone()
    tokens[0, drawn] = (tokens[0, drawn] + 1) % vocab

    def learnt(slots: int, tokens: torch.Tensor) -> torch.Tensor:
        """[position, hidden] gradient of the states."""
        heads = ParallelHeads(ParallelConfig("medusa", 32, vocab, vocab, slots=slots))
        given = replace(batch, tokens=tokens, final=batch.final.clone().requires_grad_())
        ParallelObjective(heads, tables(), torch.arange(vocab)).loss(given).backward()
        assert given.final.grad is not None
        return given.final.grad[0]

    def places(tokens: torch.Tensor) -> list[set[int]]:
        """Of each slot."""
        first, both = learnt(1, tokens), learnt(2, tokens)
        return [set(part.abs().sum(-1).nonzero().flatten().tolist()) for part in (first, both - first)]

    greedy, sampled = places(batch.tokens), places(tokens)
    assert greedy[0] - sampled[0] == {drawn - 1}
    assert greedy[1] - sampled[1] == {drawn - 2, drawn - 1}
    assert all(after < before for before, after in zip(greedy, sampled, strict=True))


def test_heads_that_read_the_token_learn_behind_drawn_ones_where_they_are_shown_it() -> None:
    vocab = target().config.vocab_size
    batch = batch_of((FINAL_TAP,), packs()[0])
    drawn = int(batch.answers[0].nonzero()[4])
    tokens = batch.tokens.clone()
    tokens[0, drawn] = (tokens[0, drawn] + 1) % vocab
    config = ParallelConfig("medusa", 32, vocab, vocab, slots=2, output_maps=True, reads_token=True)
    learnt = []
    for seed in range(12):
        heads = ParallelHeads(config)
        given = replace(batch, tokens=tokens, final=batch.final.clone().requires_grad_())
        torch.manual_seed(seed)
        ParallelObjective(heads, tables(), torch.arange(vocab)).loss(given).backward()
        assert given.final.grad is not None
        learnt.append(bool(given.final.grad[0, drawn - 1].any()))
        assert given.final.grad[0, drawn + 1].any()
    assert 6 <= sum(learnt) < 12


@pytest.mark.parametrize("name", ["ce", "tv", "lk"])
def test_every_loss_reaches_every_parameter(name: str) -> None:
    vocab = target().config.vocab_size
    config = ParallelConfig("medusa", 32, vocab, vocab, slots=2, num_layers=2, output_maps=True)
    medusa = ParallelHeads(replace(config, reads_token=True))
    blockwise = ParallelHeads(ParallelConfig("blockwise", 32, vocab, vocab, slots=2))
    torch.nn.init.normal_(blockwise.narrow.weight)
    eagles = [
        EagleObjective(random_head(v), tables(), torch.arange(vocab), loss=name, steps=2) for v in ("eagle3", "eagle")
    ]  # type: ignore[arg-type]
    heads = [ParallelObjective(each, tables(), torch.arange(vocab), loss=name) for each in (medusa, blockwise)]  # type: ignore[arg-type]
    for objective in (*eagles, *heads):
        taps = objective.head.config.taps if isinstance(objective, EagleObjective) else (FINAL_TAP,)
        objective.loss(batch_of(taps, packs()[0])).backward()
        silent = [n for n, p in objective.head.named_parameters() if p.grad is None or not p.grad.any()]
        assert silent == []


def test_documents_of_the_toy_differ() -> None:
    assert len({tuple(document.tokens.tolist()) for document in documents()}) == 50
