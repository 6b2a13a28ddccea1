"""Tokens become words as transformers parts them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from headstart_speech.words import words_of


class Pieces:
    """What transformers asks of a tokenizer: token i says the i-th piece."""

    eos_token_id = 1 << 20
    language = "english"

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, tokens: list[int], **_: Any) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


@pytest.mark.parametrize(
    ("language", "name", "pieces"),
    [
        ("en", "english", [b" The", b" qu", b"ick", b" fox", b",", b" it", b"'s", b' "', b"now", b'"', b"!", b"!"]),
        ("en", "english", [b"So", b" (", b"one", b")", b" two", b"-", b"three", b" -", b"four", b"."]),
        ("de", "german", [b" gr\xc3", b"\xbc\xc3", b"\x9fe", b" \xe2\x80", b"\x9cHal", b"lo\xe2\x80\x9d", b" ", b"x"]),
        ("fr", "french", [b" l", b"'", b"eau", b" \xc2\xab", b" oui", b" \xc2\xbb"]),
        ("ja", "japanese", [b"\xe4\xbb", b"\x8a\xe6", b"\x97\xa5", b"\xe3\x81\xaf", b"\xe3\x80\x82", b"\xe9\x9b\xa8"]),
        ("zh", "chinese", [b"\xe4\xbd\xa0\xe5\xa5\xbd", b"\xef\xbc\x8c", b"\xe5\x86\x8d\xe8\xa7\x81", b"\xef\xbc\x81"]),
        ("en", "english", [b"..."]),
        ("en", "english", []),
    ],
)
def test_words_are_those_of_transformers(language: str, name: str, pieces: list[bytes]) -> None:
    tokens = list(range(len(pieces)))
    words, _, places = _combine_tokens_into_words(Pieces(pieces), tokens, name)
    expected = [(word, own) for word, own in zip(words, places, strict=True) if word.strip()]
    assert [(span.text, span.places) for span in words_of(list(enumerate(pieces)), language)] == expected


def test_bytes_that_are_no_text_stay() -> None:
    said = [(3, b" a"), (4, b"\xff"), (7, b"b"), (9, b" \xe4")]
    assert [(span.text, span.places) for span in words_of(said, "en")] == [(" a\ufffdb", [3, 4, 7]), (" \ufffd", [9])]
