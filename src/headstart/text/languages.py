"""Languages of translation models by their names: tokens that stand beside a text, or begin an output.

How they are spelt: transformers' tokenizers of M2M100 (``__fr__``), NLLB (``fra_Latn``), mBART (``fr_XX``), Marian
(``>>fra<<``) and MADLAD (``<2fr>``).
"""

from __future__ import annotations

import re

from headstart.errors import RequestError, closest
from headstart.text.tokenizer import Tokenizer

_FORMS = ("{}", "__{}__", ">>{}<<", "<2{}>")
_LANGUAGE = re.compile(r"__\w{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
"""Those that stand beside a text by themselves."""


def language_token(tokenizer: Tokenizer, language: str, field: str) -> int:
    """The token of a language, named as the tokenizer spells it or by the bare code.

    Raises:
        RequestError: the tokenizer has none of this name; ``field``: what named it.
    """
    special = {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}
    found = [special[form.format(language)] for form in _FORMS if form.format(language) in special]
    if found:
        return found[0]
    near = closest(language, [*special, *(name.strip("_<>2") for name in special)])
    raise RequestError(
        f"{field} is {language!r:.60}, which the model's tokenizer has no token for; "
        f"{f'did you mean {near!r}?' if near else 'name a language as the model does, such as fra_Latn or fr.'}",
        field,
    )


def in_language(token_ids: list[int], tokenizer: Tokenizer, language: str) -> list[int]:
    """Token ids of an encoded text with the token of another language in place of the usual one, before or behind it.

    Raises:
        RequestError: as ``language_token``, or the tokenizer puts no language beside a text.
    """
    wanted = language_token(tokenizer, language, "src_lang")
    for place in (0, -1):
        if token_ids and _LANGUAGE.fullmatch(tokenizer.token_text(token_ids[place])):
            return [*token_ids[:place], wanted] if place else [wanted, *token_ids[1:]]
    raise RequestError(
        "src_lang is given, but this model's tokenizer puts no language beside a text; write it in the text.",
        "src_lang",
    )
