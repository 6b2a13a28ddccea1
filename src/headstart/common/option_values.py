"""Values of options: what type they have, how they are told and written. Importing this imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def said(text: str) -> object:
    """A value as it is written in a command: JSON where it is JSON (3, 0.5, true, null, [2, 1], "3"), else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def switch(value: Any) -> Any:
    """A text that means on or off as what it means; anything else as it is."""
    word = value.strip().lower() if isinstance(value, str) else ""
    return word in _TRUE if word in (*_TRUE, *_FALSE) else value


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of another type, itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def choices_of(hint: Any) -> type[StrEnum] | None:
    """The names that a type admits, where it is an enumeration."""
    return next((kind for kind in members(hint) if isinstance(kind, type) and issubclass(kind, StrEnum)), None)


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type, generic ones of mappings and sequences included."""
    origin, within = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in within)
    if origin is Literal:
        return value in within
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if origin in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(fits(each, within[0]) for each in value)
    if origin is not None:
        return isinstance(value, origin)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def describe(kind: Any) -> str:
    """A type in words."""
    origin, within = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        told = [each for each in within if each is not object and not getattr(each, "_is_protocol", False)]
        return " or ".join(dict.fromkeys(describe(each) for each in told))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in within)
    if origin in (dict, Mapping):
        return "a dictionary, in a command JSON in braces"
    if origin in (Sequence, list, tuple):
        return f"a list of {_several(within[0])}"
    if origin is type:
        return "a class"
    if kind is NoneType:
        return "None"
    words = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}
    return words.get(kind, kind.__name__ if isinstance(kind, type) else str(kind))


def _several(kind: Any) -> str:
    if get_origin(kind) in (Sequence, list, tuple):
        return f"lists of {_several(get_args(kind)[0])}"
    return {int: "integers", float: "numbers", str: "names"}.get(kind, "values")


def dashed(name: str) -> str:
    """An option's name as a command has it."""
    return f"--{name.replace('_', '-')}"


def separated(name: str, value: Any) -> Any:
    """Names with commas between them, as commands and files may have them, as a list."""
    return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value
