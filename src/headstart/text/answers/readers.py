"""Readers of calls, from their opening mark on: what the forms of the families are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from headstart.text.answers.json_text import is_object, json_value, read_string
from headstart.text.answers.literals import PYTHON, Notation
from headstart.text.answers.source import NotCalls, Reading, Say, Source
from headstart.text.answers.tools import Calls

NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
_IDENTIFIER = re.compile(r"[-.\w]*+")
Reader = Callable[[Source, Calls, str], Reading[None]]
"""Reads calls behind an opening mark, which is named; raises ``NotCalls`` where there are none."""


def _nothing(text: str) -> None:
    pass


@dataclass(frozen=True)
class JsonCalls:
    """``{"name": ..., "arguments": {...}}``, or a list of such objects, up to a closing mark."""

    closing: tuple[str, ...] = ()
    """What stands behind them, where the text does not end, or other calls open."""
    between: str = ""
    """What stands between calls that are no list; "{": nothing but white space."""
    bare: bool = False
    """No mark opens them but the sign that they begin with; each has arguments, and no other fields than those of
    calls."""
    alone: bool = False
    """Nothing stands behind them."""
    as_name: Callable[[str], str] = str
    """The function's name, of the name that is written."""

    def __call__(self, source: Source, calls: Calls, opening: str) -> Reading[None]:
        """As ``Reader``."""
        yield from source.blank()
        begun = opening if self.bare else (yield from source.sees("{", "["))
        if begun == "[":
            if not self.bare:
                source.take(1)
            yield from self._list(source, calls)
        elif begun:
            yield from self._object(source, calls, listed=False, opened=self.bare)
            while self.between and (yield from self._another(source)):
                yield from self._object(source, calls, listed=True)
        else:
            raise NotCalls
        if self.bare:
            if self.alone:
                yield from source.blank()
                if (yield from source.more()):
                    raise NotCalls
            return
        yield from source.close(self.closing, (opening,))

    def _another(self, source: Source) -> Reading[bool]:
        yield from source.blank()
        found = yield from source.sees(self.between)
        if found and found != "{":
            source.take(len(found))
            yield from source.blank()
        return bool(found)

    def _list(self, source: Source, calls: Calls) -> Reading[None]:
        yield from source.blank()
        if (yield from source.mark("]")):
            return
        while True:
            yield from source.blank()
            yield from self._object(source, calls, listed=True)
            yield from source.blank()
            if (yield from source.expect(",", "]")) == "]":
                return

    def _object(self, source: Source, calls: Calls, listed: bool, opened: bool = False) -> Reading[None]:
        place = source.place()
        if not opened:
            yield from source.expect("{")
        name: str | None = None
        held: str | None = None
        call_id: str | None = None
        known = begun = False
        some = False
        while True:
            yield from source.blank()
            if not some and (yield from source.mark("}")):
                break
            some = True
            key = yield from self._key(source)
            if key in NAMES and name is None:
                name = self.as_name((yield from read_string(source)))
                known = name in calls.tools
                if not known and not listed:
                    raise NotCalls
            elif key in ARGUMENTS and held is None and not begun:
                yield from source.more()
                if name is not None and source.text[:1] == "{":
                    begun = True
                    calls.begin(name, call_id)
                    yield from json_value(source, calls.say)
                else:
                    held = yield from _arguments(source)
            elif key in ("id", "tool_call_id"):
                written: list[str] = []
                yield from json_value(source, written.append)
                call_id = _call_id("".join(written))
            else:
                yield from json_value(source, _nothing)
            yield from source.blank()
            if (yield from source.expect(",", "}")) == "}":
                break
        if name is None or (self.bare and held is None and not begun):
            raise NotCalls
        if not begun:
            calls.begin(name, call_id)
            calls.say("{}" if held is None else held)
        if not known:
            calls.stray.append(source.since(place) if not opened else "{" + source.since(place))

    def _key(self, source: Source) -> Reading[str]:
        if self.bare:
            known = [f'"{key}"' for key in (*NAMES, *ARGUMENTS, "id", "type")]
            key = (yield from source.expect(*known)).strip('"')
        else:
            key = yield from read_string(source)
        yield from source.blank()
        yield from source.expect(":")
        yield from source.blank()
        return key


def _arguments(source: Source) -> Reading[str]:
    """A call's arguments as a whole: an object, one inside of a text, or none."""
    written: list[str] = []
    yield from json_value(source, written.append)
    text = "".join(written)
    if text == "null":
        return "{}"
    if text.startswith('"'):
        text = json.loads(text).strip()
    if not is_object(text):
        raise NotCalls
    return text


def _call_id(written: str) -> str | None:
    value = json.loads(written) if written.startswith('"') else None
    return value if value and len(value) <= 64 else None


def plain_object(source: Source, say: Say) -> Reading[None]:
    """Arguments as a JSON object, as they are written.

    Raises:
        NotCalls: they are none.
    """
    yield from source.blank()
    if (yield from source.sees("{")) != "{":
        raise NotCalls
    yield from json_value(source, say)


@dataclass(frozen=True)
class NamedCalls:
    """A function's name, and its arguments as a JSON object."""

    opening: str
    """Before each name, where calls stand in a section."""
    named: tuple[str, ...]
    """What may stand between name and arguments."""
    ends: tuple[str, ...] = ()
    """What may stand behind the arguments."""
    section: tuple[str, ...] = ()
    """Openings behind which there are calls up to ``closing``; another one is a call's own."""
    closing: tuple[str, ...] = ()
    split: Callable[[str], tuple[str, str | None]] = lambda written: (written, None)
    """The function's name and the call's id, of the name that is written."""
    fence: str = ""
    """May stand around arguments: what opens it."""

    def __call__(self, source: Source, calls: Calls, opening: str) -> Reading[None]:
        """As ``Reader``."""
        if opening not in self.section:
            yield from self._one(source, calls, opening)
            return
        while True:
            yield from source.blank()
            if not (yield from source.mark(self.opening)):
                break
            yield from self._one(source, calls, self.opening)
        yield from source.close(self.closing, (opening,))

    def _one(self, source: Source, calls: Calls, before: str) -> Reading[None]:
        place = source.place()
        written, mark = yield from source.name_until(*self.named, "{")
        if mark == "{":
            source.push_back(mark)
        name, call_id = self.split(written.strip())
        if not name or any(sign.isspace() for sign in name):
            raise NotCalls
        known = calls.begin(name, call_id)
        yield from source.blank()
        fenced = self.fence and (yield from source.mark(self.fence))
        yield from plain_object(source, calls.say)
        yield from source.blank()
        if fenced:
            yield from source.mark("```")
            yield from source.blank()
        if self.ends:
            yield from source.close(self.ends)
        if not known:
            calls.stray.append(before + source.since(place))


@dataclass(frozen=True)
class PythonCalls:
    """``f(a=1), g(b="x")``: with or without a list's brackets, between marks or alone at an answer's beginning."""

    closing: tuple[str, ...] = ()
    notation: Notation = PYTHON
    bare: bool = False
    """The opening mark is the list's own bracket."""

    def __call__(self, source: Source, calls: Calls, opening: str) -> Reading[None]:
        """As ``Reader``."""
        yield from source.blank()
        listed = self.bare or bool((yield from source.mark("[")))
        while True:
            yield from source.blank()
            if listed and (yield from source.mark("]")):
                break
            if not listed and (not (yield from source.more()) or (yield from source.sees(*self.closing))):
                break
            yield from self._call(source, calls)
            yield from source.blank()
            yield from source.mark(",", ";")
        if self.closing:
            yield from source.close(self.closing, (opening,) if not self.bare else ())

    def _call(self, source: Source, calls: Calls) -> Reading[None]:
        place = source.place()
        name = yield from self._name(source, calls)
        known = calls.begin(name)
        calls.say("{")
        some = False
        while True:
            yield from source.blank()
            if (yield from source.mark(")")):
                break
            if some:
                calls.say(", ")
            some = True
            key = yield from source.run(_IDENTIFIER)
            if not key:
                raise NotCalls
            yield from source.blank()
            yield from source.expect("=")
            calls.say(json.dumps(key, ensure_ascii=False) + ": ")
            yield from self.notation.value(source, calls.say)
            yield from source.blank()
            if not (yield from source.mark(",")):
                yield from source.expect(")")
                break
        calls.say("}")
        if not known:
            calls.stray.append(source.since(place))

    def _name(self, source: Source, calls: Calls) -> Reading[str]:
        """A function's name, given up as soon as it is none."""
        if not self.bare:
            name = yield from source.run(_IDENTIFIER)
            yield from source.expect("(")
            return name
        marks = [f"{name}(" for name in calls.tools.schemas]
        return (yield from source.expect(*marks))[:-1]
