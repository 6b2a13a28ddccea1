"""JSON that is read while it comes, and said as it is written."""

from __future__ import annotations

import json
import re

from headstart.text.answers.source import NotCalls, Reading, Say, Source

_INSIDE = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
"""Of a text, behind its quote."""
_WORD = re.compile(r"[-+.0-9A-Za-z]*+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_ESCAPE = 6
"""Characters of the longest escape."""
DEEPEST = 128
"""Levels of nesting."""


def json_value(source: Source, say: Say) -> Reading[None]:
    """One value, as it is written.

    Raises:
        NotCalls: it is no JSON, or nested too deeply.
    """
    closing: list[str] = []
    wanted = "value"
    while True:
        blank = yield from source.blank()
        if blank:
            say(blank)
        sign = source.text[:1]
        if sign and sign in "]}" and wanted in ("first", "comma") and closing[-1] == sign:
            say(source.take(1))
            closing.pop()
        elif wanted == "comma":
            if sign != ",":
                raise NotCalls
            say(source.take(1))
            wanted = "key" if closing[-1] == "}" else "value"
            continue
        elif wanted == "key" or (wanted == "first" and closing[-1] == "}"):
            yield from json_string(source, say)
            yield from _colon(source, say)
            wanted = "value"
            continue
        elif sign in ("{", "["):
            say(source.take(1))
            closing.append("}" if sign == "{" else "]")
            if len(closing) > DEEPEST:
                raise NotCalls
            wanted = "first"
            continue
        elif sign == '"':
            yield from json_string(source, say)
        else:
            word = yield from source.run(_WORD, None)
            if not _SCALAR.fullmatch(word):
                raise NotCalls
            say(word)
        if not closing:
            return
        wanted = "comma"


def _colon(source: Source, say: Say) -> Reading[None]:
    blank = yield from source.blank()
    say(blank + (yield from source.expect(":")))


def json_string(source: Source, say: Say) -> Reading[None]:
    """A text with its quotes, as it is written.

    Raises:
        NotCalls: it is none.
    """
    say((yield from source.expect('"')))
    while True:
        found = _INSIDE.match(source.text)
        assert found is not None
        if found.end():
            say(source.take(found.end()))
        if source.text.startswith('"'):
            say(source.take(1))
            return
        if source.ended or len(source.text) >= _ESCAPE or source.text[:1] not in ("", "\\"):
            raise NotCalls
        yield


def read_string(source: Source) -> Reading[str]:
    """A text, as what it means.

    Raises:
        NotCalls: it is none.
    """
    written: list[str] = []
    yield from json_string(source, written.append)
    return str(json.loads("".join(written)))


def is_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    source = Source()
    source.add(text)
    source.ended = True
    try:
        if not text.startswith("{"):
            return False
        for _ in json_value(source, lambda piece: None):
            pass
    except NotCalls:
        return False
    return not source.text.strip()
