"""Tokens that a head's vocabulary lacks: which of a text it may say, and with which output rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from head_cases import HIDDEN, TARGET
from mapped_heads import map_rows, output_rows

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextTokens, TextVocabulary, text_vocabulary
from headstart.drafting.methods.eagle.head import EagleHead
from headstart_train.first_steps.eagle import eagle_config

VOCAB, DRAFT_VOCAB = 90, 50
ROWS = output_rows(VOCAB, HIDDEN, torch.Generator().manual_seed(2))
TABLES = TargetTables(ROWS, ROWS)
IDS = torch.arange(VOCAB)[torch.arange(VOCAB) % 9 < 5]
"""What heads can say; of nine tokens the last four are lacking."""


def mapped_head(norm_output: bool = True) -> EagleHead:
    config = replace(eagle_config(replace(TARGET, vocab_size=VOCAB), "eagle3", DRAFT_VOCAB), norm_output=norm_output)
    head = EagleHead(config)
    head.d2t.copy_(IDS - torch.arange(DRAFT_VOCAB))
    with torch.no_grad():
        head.norm.weight.copy_(torch.linspace(0.5, 2.0, HIDDEN))
    map_rows(head, ROWS)
    return head


def vocabulary_of(head: EagleHead) -> TextVocabulary:
    vocabulary = text_vocabulary(head, TABLES, VOCAB)
    assert vocabulary is not None
    return vocabulary


@pytest.mark.parametrize("norm_output", [True, False])
def test_logits_are_those_that_the_head_would_have(norm_output: bool) -> None:
    head = mapped_head(norm_output)
    tokens = TextTokens(vocabulary_of(head), 20)
    tokens.read([0, 5, 9, 17, 80])
    assert tokens.tokens.tolist() == [5, 17, 80]
    output = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(1))
    # The map that made the head's rows makes those of the tokens that it lacks.
    whole = EagleHead(replace(head.config, draft_vocab_size=VOCAB))
    whole.norm.load_state_dict(head.norm.state_dict())
    mapped = torch.linalg.lstsq(ROWS[IDS], head.lm_head.weight * head.norm.weight, driver="gelsd").solution
    with torch.no_grad():
        whole.lm_head.weight.copy_(ROWS @ mapped / head.norm.weight)
        wanted = whole.logits(output)[:, [5, 17, 80]] + TextVocabulary.bias
        found = tokens.logits(head.feed_back(output), None if norm_output else head.config.norm_eps)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.05)


def test_heads_whose_rows_are_no_map_of_the_targets_say_what_they_can() -> None:
    head = mapped_head()
    assert vocabulary_of(head).explained > 0.99
    with torch.no_grad():
        head.lm_head.weight.copy_(torch.randn(DRAFT_VOCAB, HIDDEN, generator=torch.Generator().manual_seed(8)))
    assert text_vocabulary(head, TABLES, VOCAB) is None


def test_heads_that_say_every_token_lack_none() -> None:
    head = EagleHead(eagle_config(replace(TARGET, vocab_size=VOCAB), "eagle3"))
    assert text_vocabulary(head, TABLES, VOCAB) is None


def test_padding_of_the_tables_is_no_token() -> None:
    vocabulary = text_vocabulary(mapped_head(), TABLES, VOCAB - 1)
    assert vocabulary is not None
    assert not vocabulary.lacks[VOCAB - 1]
    assert vocabulary.lacks[VOCAB - 2]


def test_a_text_that_grows_is_known_like_one_that_is_whole() -> None:
    text = np.random.default_rng(0).integers(0, VOCAB, 60).tolist()
    vocabulary = vocabulary_of(mapped_head())
    whole, grown = TextTokens(vocabulary, 40), TextTokens(vocabulary, 40)
    for end in range(1, len(text) + 1):
        grown.read(text[:end])
    whole.read(text)
    whole.read(text)  # again: nothing new
    assert sorted(whole.tokens.tolist()) == sorted(grown.tokens.tolist()) == sorted({t for t in text if t % 9 >= 5})
    assert len(whole) == len(whole.rows) == len(grown)
    for tokens in (whole, grown):
        torch.testing.assert_close(tokens.rows, vocabulary.rows(tokens.tokens))


def test_of_a_long_text_the_last_tokens_are_known_and_as_many_that_follow() -> None:
    lacking = [token for token in range(VOCAB) if token % 9 >= 5]
    tokens = TextTokens(vocabulary_of(mapped_head()), 3)
    tokens.read([*lacking[:10], lacking[0], 1, 2])
    assert tokens.tokens.tolist() == [*lacking[8:10], lacking[0]]
    tokens.read([*lacking[:10], lacking[0], 1, 2, lacking[0], *lacking[1:8]])
    assert tokens.tokens.tolist() == [*lacking[8:10], lacking[0], *lacking[1:4]]
    assert tokens.reserve(100) == 6


def test_room_is_made_behind_what_is_known() -> None:
    tokens = TextTokens(vocabulary_of(mapped_head()), 20)
    tokens.read([5, 6])
    rows = tokens.rows.clone()
    assert tokens.reserve(7) == 9
    assert tokens.tokens.tolist() == [5, 6]
    assert torch.equal(tokens.rows, rows)
    held, space = tokens.buffers
    assert len(held) == len(space) == 9


def test_a_table_of_the_targets_own_is_not_counted_twice() -> None:
    tied, head = ROWS.bfloat16(), mapped_head()
    with_own = TextVocabulary(head, TargetTables(torch.zeros_like(tied), tied), VOCAB)
    assert with_own.nbytes - TextVocabulary(head, TargetTables(tied, tied), VOCAB).nbytes == tied.nbytes
