"""A structure as the text of a grammar that llguidance compiles."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.closed_schemas import closed

_HEADER = '%llguidance {"no_forcing": true}\nstart: '
"""Without it, where only one text can follow, llguidance allows only the tokens its tokenizer would cut that text into:
the law would no longer be the target's own over all spellings."""

_WHITESPACE = r" |\r?\n[ \t]{0,40}"
"""Between the tokens of JSON: a space, or a new line with its indentation, and no more. A small model may otherwise
write blank lines to its end."""


def closing_of(wanted: StructuredOutputsParams) -> tuple[bool, ...]:
    """In which ways to try a structure, with its objects closed first. llguidance cannot enforce every schema; of what
    it can enforce as it is, closing must make nothing that it cannot."""
    return (False,) if wanted.json is None and wanted.grammar is None else (True, False)


def grammar_source(library: ModuleType, wanted: StructuredOutputsParams, closing: bool) -> str:
    """The grammar of a structure; ``library``: llguidance.

    Raises:
        RequestError: its schema is nested too deeply, or has too many branches of too many properties.
        ValueError: its expression is none.
    """
    if wanted.regex is not None:
        return f"{_HEADER}/{library.regex_to_lark(wanted.regex, use_ascii='d')}/"
    if wanted.choice is not None:
        return _HEADER + " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
    if wanted.grammar is not None:
        return _HEADER.removesuffix("start: ") + _SCHEMA.sub(
            lambda found: f"%json {json.dumps(_enforced(json.loads(found[1]), closing))}", wanted.grammar
        )
    schema = {"type": "object"} if wanted.json is None else json.loads(str(wanted.json))
    return f"{_HEADER}%json {json.dumps(_enforced(schema, closing))}"


_SCHEMA = re.compile(r"%json (.*)")
"""In a grammar: up to the end of its line."""


def _enforced(schema: Any, closing: bool) -> Any:
    """A schema as it is enforced: its objects closed, and white space bounded."""
    if closing:
        schema = closed(schema)
    return schema | {"x-guidance": {"whitespace_pattern": _WHITESPACE}} if isinstance(schema, dict) else schema
