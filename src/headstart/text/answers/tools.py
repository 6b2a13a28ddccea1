"""The functions that an answer may call, and what is told of their calls while they are read."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping
from typing import Any

from headstart.text.answers.events import Arguments, CallBegun, Event

_FITS = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
    "string": (str,),
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"-?[0-9]+\.0+")


class Tools:
    """What may be called: name -> JSON schema of the parameters; None: nothing is known of them."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any] | None]) -> None:
        self.schemas = dict(schemas)
        self.longest = max(map(len, self.schemas), default=0)

    def __contains__(self, name: str) -> bool:
        return name in self.schemas

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """The JSON types that a parameter may have; empty: not known."""
        schema = self.schemas.get(name) or {}
        properties = schema.get("properties")
        own = properties.get(parameter) if isinstance(properties, Mapping) else None
        return frozenset(_types(own, schema, 4))


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or not depth:
        return set()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for key in reference[2:].split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return _types(found, root, depth - 1)
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else set()
    types |= {each for each in declared if isinstance(each, str)} if isinstance(declared, list) else set()
    for union in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(union) or ():
            types |= _types(choice, root, depth - 1)
    if not types:
        values = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
        types = {name for value in values for name, fit in _FITS.items() if type(value) in fit}
    return types | ({"null"} if schema.get("nullable") else set())


def typed(text: str, types: frozenset[str]) -> str:
    """A value that is written without quotes, as JSON: of one of the types where it can be read so, else a text."""
    written = text.strip()
    written = _PYTHON.get(written, written)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "integer" in types and _NUMBER.fullmatch(written):
        return written.partition(".")[0]
    if any(type(value) in _FITS[name] for name in types if name in _FITS and name != "string"):
        return written
    return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def escaped(text: str) -> str:
    """A part of a text as it stands between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


_LETTERS = string.ascii_letters + string.digits


def fresh_id(size: int = 0) -> str:
    """Of a call: as OpenAI's, or of so many letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(size)) if size else "call_" + secrets.token_hex(12)


class Calls:
    """What one attempt to read calls has found.

    Args:
        tools: what may be called.
        first: index of the next call.
        tell: takes events as they come.
        parallel: False: of several calls only the answer's first one counts.
        id_size: of fresh ids; 0: as OpenAI's.
    """

    def __init__(self, tools: Tools, first: int, tell: Any, parallel: bool, id_size: int = 0) -> None:
        self.tools = tools
        self.stray: list[str] = []
        """Calls of functions that there are not, as they are written."""
        self.seen = 0
        """Calls of functions that there are."""
        self._tell = tell
        self._parallel = parallel
        self._id_size = id_size
        self._first = self._next = first
        self._silent = True

    @property
    def indices(self) -> range:
        """Of the calls that were told."""
        return range(self._first, self._next)

    def begin(self, name: str, call_id: str | None = None) -> bool:
        """A call begins; False: there is no such function, and nothing is told of its arguments."""
        known = name in self.tools
        self.seen += known
        self._silent = not known or (not self._parallel and self._next > 0)
        if not self._silent:
            self._tell(CallBegun(self._next, call_id or fresh_id(self._id_size), name))
            self._next += 1
        return known

    def say(self, text: str) -> None:
        """More of the arguments of the call that has begun."""
        if text and not self._silent:
            event: Event = Arguments(self._next - 1, text)
            self._tell(event)
