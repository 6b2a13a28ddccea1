"""Words that are not to be said, as the token sequences that spell them."""

from __future__ import annotations

from collections.abc import Iterable

from headstart.errors import RequestError
from headstart.text.tokenizer import Tokenizer


def spellings(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word where a text begins with it, and where a space stands before it, each sequence once.

    The rule is vLLM's (``SamplingParams.bad_words``), which leaves out spaces before the word itself, but bans the
    second form only where it has as many tokens as the first.

    Raises:
        RequestError: nothing of a word is left, or it has no UTF-8 form.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise RequestError(f"bad_words holds {word!r}, which is no word; leave it out.", "bad_words")
        for text in (bare, " " + bare):
            tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
            if tokens:
                sequences[tokens] = None
    return tuple(sequences)
