"""Learning tokens of the text that a head lacks: what it learns of them is what drafting will say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from training_toys import packs, tables, target

from headstart.drafting.heads.text_vocabulary import TextTokens, TextVocabulary
from headstart.drafting.methods.eagle.head import EagleHead
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.objectives import losses
from headstart_train.objectives.eagle import EagleObjective
from headstart_train.objectives.losses import ROW_LOSSES
from headstart_train.objectives.objective import Chains, StepLosses, Teacher
from headstart_train.objectives.text_lessons import BatchTextTokens, TextLessons
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.states import Batch, TargetStates

VOCAB = target().config.vocab_size
IDS = torch.arange(VOCAB)[torch.arange(VOCAB) % 3 > 0]
"""Two tokens of three."""


def reduced_head(norm_output: bool = True) -> EagleHead:
    torch.manual_seed(1)
    config = replace(eagle_config(target().config, "eagle3", len(IDS)), norm_output=norm_output)
    head = EagleHead(config)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    head.d2t.copy_(IDS - torch.arange(len(IDS)))
    return head


def batch_for(head: EagleHead) -> Batch:
    return TargetStates(target().backend, tables().head, head.config.taps, 0).batch(packs()[:2])


def text_tokens_of(head: EagleHead, batch: Batch) -> BatchTextTokens:
    return TextLessons(head, tables(), IDS).of(batch)


def test_tokens_count_from_where_their_document_holds_them() -> None:
    head = reduced_head()
    batch = batch_for(head)
    text_tokens = text_tokens_of(head, batch)
    has = set(IDS.tolist())
    real = batch.documents >= 0
    assert text_tokens.ids.tolist() == sorted({*batch.tokens[real].tolist()} - has)
    said: set[tuple[int, int]] = set()
    for pack in range(len(batch.tokens)):
        for place in range(batch.tokens.shape[1]):
            document = int(batch.documents[pack, place])
            if document >= 0:
                said.add((document, int(batch.tokens[pack, place])))
                wanted = [(document, token) in said for token in text_tokens.ids.tolist()]
                assert text_tokens.seen[pack, place].tolist() == wanted
    tokens = torch.full_like(batch.tokens, int(text_tokens.ids[0]))
    assert torch.equal(text_tokens.holds(tokens[real], real), text_tokens.seen[..., 0][real])
    assert not text_tokens.holds(torch.full_like(batch.tokens, int(IDS[0]))[real], real).any()


@pytest.mark.parametrize("norm_output", [True, False])
def test_its_rows_and_logits_are_those_of_a_draft(norm_output: bool) -> None:
    head = reduced_head(norm_output)
    text_tokens = text_tokens_of(head, batch_for(head))
    drafting = TextTokens(TextVocabulary(head, tables(), VOCAB), len(text_tokens.ids))
    drafting.read(text_tokens.ids.tolist())
    torch.testing.assert_close(text_tokens.rows, drafting.rows.float(), rtol=0.02, atol=0.02)
    output = torch.randn(3, head.config.hidden_size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = drafting.logits(head.feed_back(output), None if norm_output else head.config.norm_eps)
        torch.testing.assert_close(text_tokens.logits(output), wanted, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("name", ROW_LOSSES)
@pytest.mark.parametrize("norm_output", [True, False])
def test_the_loss_and_its_gradients_are_those_of_one_wide_row(
    norm_output: bool, name: losses.LossName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that reach the output rows which the head has through the map that makes the others."""
    monkeypatch.setattr(losses, "_ROWS", 7)
    head = reduced_head(norm_output)
    batch, steps, decay = batch_for(head), 2, 0.8
    found = EagleObjective(head, tables(), IDS, loss=name, steps=steps, decay=decay).loss(batch)
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(found, parameters)

    text_tokens, teacher = text_tokens_of(head, batch), Teacher(tables(), IDS)
    places = StepLosses(head, teacher, batch, name, decay, text_tokens)
    unrolled = Unrolled(head, tables().embedding, RotaryTable(head.config.rope, torch.float32), batch)
    every = torch.cat((IDS, text_tokens.ids))
    learnt, whole = 0, torch.zeros(())
    for step in range(steps):
        output = unrolled.step()
        chosen = places.places(step)
        states = output[chosen[unrolled.places]]
        normed = head.norm(states) if norm_output else F.rms_norm(states, states.shape[-1:], None, head.norm.eps)
        more = normed @ text_tokens.made_rows.T + TextVocabulary.bias
        ahead = torch.roll(torch.arange(batch.tokens.shape[1]), -1 - step)
        seen = torch.cat(
            (torch.ones(int(chosen.sum()), len(IDS), dtype=torch.bool), text_tokens.seen[:, ahead][chosen]), 1
        )
        law = F.linear(batch.final[:, ahead][chosen], tables().head[every]).masked_fill(~seen, -torch.inf).softmax(-1)
        logits = torch.cat((head.logits(states), more), dim=-1).masked_fill(~seen, -1e4)
        whole = whole + decay**step * ROW_LOSSES[name](logits, law).sum() / batch.guessed(0).sum()
        favourites = batch.favourites[:, ahead][chosen]
        learnt += int((~torch.isin(favourites, IDS)).sum())
    assert learnt, "no guess of a token that the head lacks is learnt; the test shows nothing"
    torch.testing.assert_close(found, whole)
    for gradient, wanted in zip(gradients, torch.autograd.grad(whole, parameters), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


def test_guesses_of_text_tokens_count_where_the_text_holds_them() -> None:
    head = reduced_head()
    batch = batch_for(head)
    text_tokens = text_tokens_of(head, batch)
    chains = Chains(Teacher(tables(), IDS), batch, text_tokens=text_tokens)
    favourites = torch.roll(batch.favourites, -1, 1)[chains.places]
    token = int(favourites[torch.isin(favourites, text_tokens.ids)].mode().values)
    column = text_tokens.ids.tolist().index(token)
    logits = torch.zeros(len(favourites), len(IDS) + len(text_tokens.ids))
    logits[:, len(IDS) + column] = 1
    chains.judge(0, logits)
    said = text_tokens.seen[chains.places][:, column] & (favourites == token)
    assert 0 < int(said.sum()) == int(chains.result().right[0])


def test_a_text_without_such_tokens_is_learnt_as_ever() -> None:
    head = reduced_head()
    batch = batch_for(head)
    only_known = replace(batch, tokens=IDS[batch.tokens % len(IDS)])
    text_tokens = text_tokens_of(head, only_known)
    assert text_tokens.ids.tolist() == []
    assert text_tokens.seen.shape == (*batch.tokens.shape, 0)
    objective = EagleObjective(head, tables(), IDS, steps=2)
    assert torch.isfinite(objective.loss(only_known))
    assert objective.held_out(only_known).rows == int(only_known.guessed(0).sum())
