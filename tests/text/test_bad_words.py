"""Bad words as token sequences, with tokenizers that cut and that put spaces in front."""

from __future__ import annotations

import pytest
from small_tokenizers import byte_level, sentencepiece

from headstart.errors import RequestError
from headstart.text.bad_words import spellings
from headstart.text.tokenizer import Tokenizer


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_a_word_is_banned_at_the_start_of_a_text_and_behind_a_space(make) -> None:
    tokenizer: Tokenizer = make()
    sequences = spellings(["the", " cat", "the"], tokenizer)
    for word in ("the", "cat"):
        for text in (word, " " + word):
            assert tuple(tokenizer.encode(text, add_special_tokens=False)) in sequences
    assert len(set(sequences)) == len(sequences)
    assert spellings([], tokenizer) == ()


@pytest.mark.parametrize("word", [" ", "\n"])
def test_what_is_no_word_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="bad_words holds") as refusal:
        spellings([word], byte_level())
    assert refusal.value.field == "bad_words"
