"""Forms in which models write tool calls."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_BLANK = re.compile(r"[ \t\r\n]*+")
_OUTSIDE = re.compile(r"[ \t\r\n:0-9+\-.eEtrufalsn]*+")
"""What JSON holds outside of its texts, beside brackets and commas."""
_INSIDE = re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*+')
"""What it holds inside of a text."""
_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "id", "type")
"""Of a call."""


class NotCalls(Exception):
    """A text is not, and does not become, a call in some form."""


@dataclass(frozen=True)
class ToolCall:
    """One call, with its arguments as the JSON text that the model wrote."""

    name: str
    arguments: str

    def as_openai(self) -> dict[str, Any]:
        """The call in OpenAI's form, with a fresh id."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": "call_" + secrets.token_hex(12), "type": "function", "function": function}


Part = ToolCall | str
"""A call, or text that is none."""


class JsonCalls:
    """Reads calls as JSON: ``{"name": ..., "arguments": {...}}``, or a list of such objects.

    Args:
        names: of the functions that may be called.
        opening: what stands before them. Empty: it is a list with nothing but white space behind it, and is given up as
            soon as it holds what no call does.
        closing: what stands behind them, unless the text ends or the next calls open.
    """

    def __init__(self, names: Collection[str], opening: str, closing: str) -> None:
        self._names = names
        self._opening, self._closing = opening, closing
        self._at = len(opening)
        self._listed = False
        self._item: _JsonObject | None = None
        self._parts: list[Part] = []
        self._wanted = "{["
        """What may come next, beside white space; empty: what stands behind the calls."""

    def read(self, text: str, ended: bool) -> tuple[int, list[Part]] | None:
        """As for every form."""
        while self._wanted and self._next(text):
            pass
        end = None if self._wanted else self._end(text, ended)
        if end is None:
            if ended:
                raise NotCalls
            return None
        called = any(isinstance(part, ToolCall) for part in self._parts)
        return end, self._parts if called else [text[:end]]

    def _next(self, text: str) -> bool:
        """Read one item, or what stands between items; False: more text is needed."""
        if self._item is not None:
            end = self._item.end(text)
            if end is None:
                return False
            self._parts.append(self._part(text[self._at : end]))
            self._at, self._item = end, None
            self._wanted = ",]" if self._listed else ""
            return True
        self._at = _after_blank(text, self._at)
        sign = text[self._at : self._at + 1]
        if not sign:
            return False
        if sign not in self._wanted or (sign == "{" and not self._opening and not self._listed):
            raise NotCalls
        if sign == "{":
            self._item = _JsonObject(self._at, None if self._opening else _KEYS)
            return True
        self._listed = True
        self._wanted = "" if sign == "]" else "{"
        self._at += 1
        return True

    def _end(self, text: str, ended: bool) -> int | None:
        """Where the calls end with all that belongs to them; None: more text is needed."""
        at = _after_blank(text, self._at)
        rest = text[at:]
        if not rest:
            return at if ended else None
        if self._closing and rest.startswith(self._closing):
            return at + len(self._closing)
        if self._opening and rest.startswith(self._opening):
            return at
        if self._opening and (self._closing.startswith(rest) or self._opening.startswith(rest)):
            return len(text) if ended else None
        raise NotCalls

    def _part(self, source: str) -> Part:
        """An object as a call, or as text if it is none.

        Raises:
            NotCalls: it is not even JSON, or it has not the form of a call in a list without marks.
        """
        fields = _fields(source)
        name, arguments = _name(fields), _arguments(fields)
        if not self._opening and (not name or arguments is None or not fields.keys() & set(_ARGUMENTS)):
            raise NotCalls
        return source if arguments is None or name not in self._names else ToolCall(name, arguments)


class _JsonObject:
    """Looks for the end of a JSON object in a text that grows.

    Args:
        at: where it begins.
        keys: the only keys that it may have; None: any.
    """

    def __init__(self, at: int, keys: Collection[str] | None) -> None:
        self._at = at
        self._depth = 0
        self._quoted = False
        self._key: int | None = None
        """Where the key begins that is being read."""
        self._before_key = False
        self._keys = None if keys is None else [f'"{key}"' for key in keys]

    def end(self, text: str) -> int | None:
        """Where it ends; None: not yet.

        Raises:
            NotCalls: it is no JSON, or has another key.
        """
        while True:
            self._at = at = (_INSIDE if self._quoted else _OUTSIDE).match(text, self._at).end()  # type: ignore[union-attr]
            self._check_key(text)
            sign = text[at : at + 1]
            if not sign or (self._quoted and sign == "\\" and at + 1 == len(text)):
                return None
            self._at += 1
            if sign == '"':
                self._turn_quote(text)
            elif self._quoted or sign not in "{}[],":
                raise NotCalls
            elif sign in "{[":
                self._depth += 1
                self._before_key = self._depth == 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    return self._at
            else:
                self._before_key = self._depth == 1

    def _turn_quote(self, text: str) -> None:
        self._quoted = not self._quoted
        if self._quoted and self._before_key:
            self._key, self._before_key = self._at - 1, False
        elif not self._quoted:
            self._check_key(text)
            self._key = None

    def _check_key(self, text: str) -> None:
        if self._key is None or self._keys is None:
            return
        read = text[self._key : self._at]
        if not any(key == read if not self._quoted else key.startswith(read) for key in self._keys):
            raise NotCalls


def _after_blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]


def _refuse(name: str) -> Any:
    raise ValueError(name)


# Numbers stay as they are written: Python's have bounds that JSON's have not.
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


def _fields(source: str) -> dict[str, tuple[Any, str]]:
    """The fields of a JSON object, each as a value and as it is written."""
    fields: dict[str, tuple[Any, str]] = {}
    try:
        _DECODER.decode(source)
        at = _after_blank(source, 1)
        while source[at] != "}":
            key, at = _DECODER.raw_decode(source, at)
            begin = _after_blank(source, _after_blank(source, at) + 1)
            value, at = _DECODER.raw_decode(source, begin)
            fields[key] = value, source[begin:at]
            at = _after_blank(source, at)
            at = _after_blank(source, at + (source[at] == ","))
    except (ValueError, RecursionError):
        raise NotCalls from None
    return fields


def _name(fields: dict[str, tuple[Any, str]]) -> str:
    """A call's name; empty: it has none."""
    value, written = fields.get("name", ("", ""))
    return value if written.startswith('"') else ""


def _arguments(fields: dict[str, tuple[Any, str]]) -> str | None:
    """A call's arguments as the text of a JSON object; None: they are something else."""
    value, written = next((fields[key] for key in _ARGUMENTS if key in fields), (None, ""))
    if value is None:
        return "{}"
    if written.startswith('"'):
        # JSON inside of a text.
        written = value.strip()
        try:
            value = _DECODER.decode(written)
        except (ValueError, RecursionError):
            return None
    return written if isinstance(value, dict) else None
