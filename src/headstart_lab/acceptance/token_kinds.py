"""What sort of token it is that a drafter has to guess."""

from __future__ import annotations

import string
from enum import StrEnum

_CODE = frozenset("{}[]<>=+*/\\|&^%$#@~`_")


class TokenKind(StrEnum):
    """Kinds, by what a token adds to the text."""

    WORD_START = "word start"
    WORD_PIECE = "word piece"
    """Letters that go on with a word."""
    NUMBER = "number"
    PUNCTUATION = "punctuation"
    CODE = "code symbol"
    WHITESPACE = "whitespace"
    """Newlines among it."""
    SPECIAL = "special token"
    """End of turn and the like."""
    OTHER = "other"
    """Parts of characters, symbols, mixtures."""


def kind_of(piece: bytes, before: bytes, special: bool = False) -> TokenKind:
    """The kind of a token.

    Args:
        piece: what it adds to the text.
        before: what the token before it added.
        special: it marks structure and adds nothing to the text.
    """
    if special:
        return TokenKind.SPECIAL
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return TokenKind.OTHER
    core = text.strip()
    if not core:
        return TokenKind.WHITESPACE if text else TokenKind.OTHER
    if core.isdigit():
        return TokenKind.NUMBER
    if core[0].isalpha() and all(character.isalpha() or character in "'’-" for character in core):
        follows_a_word = text[0] == core[0] and before.decode(errors="replace")[-1:].isalnum()
        return TokenKind.WORD_PIECE if follows_a_word else TokenKind.WORD_START
    if all(character in _CODE for character in core):
        return TokenKind.CODE
    if all(character in string.punctuation or not (character.isalnum() or character.isspace()) for character in core):
        return TokenKind.CODE if any(character in _CODE for character in core) else TokenKind.PUNCTUATION
    return TokenKind.OTHER
