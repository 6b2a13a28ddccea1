"""Values in the notation of a programming language, as JSON: Python's, and Gemma's with texts between marks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from headstart.text.answers.source import NotCalls, Reading, Say, Source
from headstart.text.answers.tools import escaped

_WORD = re.compile(r"[-+.\w]*+")
_NAME = re.compile(r"[-.$\w]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_PLAIN = re.compile(r"[^\\]+")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_ESCAPES = _CONTROLS | {mark: mark for mark in "/\\'\""} | {"\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}
"""Escape -> hexadecimal digits behind it."""
_DEEPEST = 64


@dataclass(frozen=True)
class Notation:
    """How values are written."""

    quotes: tuple[str, ...]
    """What a text stands between; a backslash escapes where it is a quote of Python's."""
    bare_keys: bool = False
    """The keys of objects are names without quotes."""

    def value(self, source: Source, say: Say, depth: int = 0) -> Reading[None]:
        """Reads one value and says it as JSON.

        Raises:
            NotCalls: it is none.
        """
        yield from source.blank()
        if depth > _DEEPEST:
            raise NotCalls
        opening = yield from source.mark(*self.quotes, "[", "(", "{")
        if opening in self.quotes and opening:
            say('"')
            yield from self._text(source, opening, say)
            say('"')
        elif opening == "{":
            yield from self._object(source, say, depth)
        elif opening:
            yield from self._list(source, "]" if opening == "[" else ")", say, depth)
        else:
            word = yield from source.run(_WORD, None)
            if word not in _WORDS and not _NUMBER.fullmatch(word):
                raise NotCalls
            say(_WORDS.get(word, word))

    def _list(self, source: Source, closing: str, say: Say, depth: int) -> Reading[None]:
        say("[")
        some = False
        while True:
            yield from source.blank()
            if (yield from source.mark(closing)):
                break
            if some:
                say(", ")
            yield from self.value(source, say, depth + 1)
            some = True
            yield from source.blank()
            if not (yield from source.mark(",")):
                yield from source.expect(closing)
                break
        say("]")

    def _object(self, source: Source, say: Say, depth: int) -> Reading[None]:
        say("{")
        some = False
        while True:
            yield from source.blank()
            if (yield from source.mark("}")):
                break
            if some:
                say(", ")
            yield from self._key(source, say)
            yield from self.value(source, say, depth + 1)
            some = True
            yield from source.blank()
            if not (yield from source.mark(",")):
                yield from source.expect("}")
                break
        say("}")

    def _key(self, source: Source, say: Say) -> Reading[None]:
        quote = yield from source.mark(*self.quotes)
        if quote:
            say('"')
            yield from self._text(source, quote, say)
            say('"')
        elif self.bare_keys:
            name = yield from source.run(_NAME)
            if not name:
                raise NotCalls
            say(json.dumps(name, ensure_ascii=False))
        else:
            raise NotCalls
        yield from source.blank()
        yield from source.expect(":")
        say(": ")

    def _text(self, source: Source, quote: str, say: Say) -> Reading[None]:
        if quote.strip("'\""):
            if not (yield from source.until((quote,), lambda text: say(escaped(text)))):
                raise NotCalls
            return
        while True:
            found = yield from source.until((quote, "\\"), lambda text: say(escaped(text)))
            if found == quote:
                return
            if not found or not (yield from source.more()):
                raise NotCalls
            sign = source.take(1)
            if sign not in _CODES:
                say(escaped(_ESCAPES.get(sign, "\\" + sign)))
                continue
            yield from source.at_least(_CODES[sign])
            try:
                code = int(source.take(_CODES[sign]), 16)
                # Half of a surrogate pair stays an escape, which JSON has, too.
                say(f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else escaped(chr(code)))
            except (ValueError, OverflowError):
                raise NotCalls from None


PYTHON = Notation(('"""', "'''", '"', "'"))
