"""Readers of calls that are written with marks around each parameter."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headstart.text.answers.source import NotCalls, Reading, Say, Source
from headstart.text.answers.tools import Calls, escaped, typed


@dataclass(frozen=True)
class Markup:
    """How a call is written with marks around its function and each of its parameters. A value is a text as it stands,
    unless the function's schema says otherwise."""

    function: tuple[str, str]
    """What stands around a function's name."""
    function_end: str
    parameter: tuple[str, str]
    """What stands around a parameter's name."""
    parameter_end: str
    name_end: str = ""
    """What ends a parameter's name before the second mark."""
    trimmed: bool = True
    """A line break behind the one mark and before the other is no part of a value."""
    flag: tuple[str, str] | None = None
    """What stands between a parameter's name and the second mark where the value is a text, and where it is JSON."""

    def call(self, source: Source, calls: Calls) -> Reading[None]:
        """One call, whose first mark was read."""
        name, _ = yield from source.name_until(self.function[1])
        calls.begin(name.strip().strip('"'))
        yield from self.parameters(source, calls, name.strip().strip('"'), (self.function_end,))

    def parameters(self, source: Source, calls: Calls, name: str, ends: Sequence[str]) -> Reading[str]:
        """All parameters of a call, as one object; the mark that ended them."""
        calls.say("{")
        some = False
        while True:
            yield from source.blank()
            found = yield from source.expect(self.parameter[0], *ends)
            if found != self.parameter[0]:
                calls.say("}")
                return found
            if some:
                calls.say(", ")
            some = True
            yield from self._parameter(source, calls, name)

    def _parameter(self, source: Source, calls: Calls, name: str) -> Reading[None]:
        marks = (self.parameter[1],) if self.flag is None else self.flag
        key, mark = yield from source.name_until(*marks)
        key = (key.partition(self.name_end)[0] if self.name_end else key).strip().strip('"')
        calls.say(json.dumps(key, ensure_ascii=False) + ": ")
        types = calls.tools.types(name, key)
        text = types <= {"string"} if self.flag is None else mark == self.flag[0]
        if text:
            calls.say('"')
            value = _Trimmed(lambda part: calls.say(escaped(part)), self.trimmed)
            found = yield from source.until((self.parameter_end,), value.say)
            calls.say('"')
        else:
            whole: list[str] = []
            value = _Trimmed(whole.append, self.trimmed)
            found = yield from source.until((self.parameter_end,), value.say)
            types = types if self.flag is None else types | _ANY
            calls.say(typed("".join(whole), types))
        if not found:
            raise NotCalls


_ANY = frozenset({"number", "boolean", "null", "object", "array"})


class _Trimmed:
    """Says a text without a line break at its beginning and at its end."""

    def __init__(self, say: Say, trimmed: bool) -> None:
        self._say = say
        self._trimmed = trimmed
        self._begins = True
        self._held = ""

    def say(self, text: str) -> None:
        if not self._trimmed:
            self._say(text)
            return
        if self._begins and text.startswith("\n"):
            text = text[1:]
            self._begins = False
            if not text:
                return
        self._begins = False
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        if text := text.removesuffix("\n"):
            self._say(text)


@dataclass(frozen=True)
class MarkupCalls:
    """Calls in marks, between an opening and a closing one."""

    markup: Markup
    closing: tuple[str, ...]
    wrapped: Collection[str]
    """Openings behind which there are calls up to the closing mark; another one is a call's own first mark."""

    def __call__(self, source: Source, calls: Calls, opening: str) -> Reading[None]:
        """As ``Reader``."""
        if opening not in self.wrapped:
            place = source.place()
            yield from self._one(source, calls, place, opening)
            yield from source.blank()
            yield from source.mark(*self.closing)
            return
        while True:
            yield from source.blank()
            place = source.place()
            if not (yield from source.mark(self.markup.function[0])):
                break
            yield from self._one(source, calls, place)
        yield from source.close(self.closing, (opening,))

    def _one(self, source: Source, calls: Calls, place: int, before: str = "") -> Reading[None]:
        seen = calls.seen
        yield from self.markup.call(source, calls)
        if calls.seen == seen:
            calls.stray.append(before + source.since(place))
