"""Kinds of tokens."""

from __future__ import annotations

import pytest

from headstart_lab.acceptance.token_kinds import TokenKind, kind_of


@pytest.mark.parametrize(
    ("piece", "before", "kind"),
    [
        (" the", "in", TokenKind.WORD_START),
        ("The", "\n", TokenKind.WORD_START),
        ("The", "", TokenKind.WORD_START),
        ("ing", "walk", TokenKind.WORD_PIECE),
        ("'s", "walk", TokenKind.OTHER),
        (" well-known", "a", TokenKind.WORD_START),
        ("ß", "Stra", TokenKind.WORD_PIECE),
        ("日本", "。", TokenKind.WORD_START),
        ("7", "1", TokenKind.NUMBER),
        (" 2024", "in", TokenKind.NUMBER),
        (".", "end", TokenKind.PUNCTUATION),
        (' "', "said", TokenKind.PUNCTUATION),
        ("),", "x", TokenKind.PUNCTUATION),
        ("…", "x", TokenKind.PUNCTUATION),
        (" +=", "x", TokenKind.CODE),
        ("()[", "f", TokenKind.CODE),
        ("\n\n", ".", TokenKind.WHITESPACE),
        ("  ", "x", TokenKind.WHITESPACE),
        ("x1", "=", TokenKind.OTHER),
        ("", "x", TokenKind.OTHER),
    ],
)
def test_what_a_token_adds_decides(piece, before, kind):
    assert kind_of(piece.encode(), before.encode()) is kind


def test_parts_of_characters_and_special_tokens():
    assert kind_of("日".encode()[:2], b"") is TokenKind.OTHER
    assert kind_of(b"<|end|>", b"x", special=True) is TokenKind.SPECIAL
    assert kind_of(b"b", "ä".encode()[1:]) is TokenKind.WORD_START
