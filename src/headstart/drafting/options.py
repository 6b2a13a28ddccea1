"""Options of a drafter: a frozen dataclass each, checked before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_args, get_type_hints, runtime_checkable

from headstart.common.option_values import describe, fits, said
from headstart.errors import ConfigError, closest

MOST = 1_000_000_000
"""No number among options is larger: nothing that is counted by one would fit into memory."""


@dataclass(frozen=True)
class NoOptions:
    """Nothing to choose."""


@runtime_checkable
class HasOptions(Protocol):
    """A drafter's class that can be told more than nothing."""

    Options: type[Any]
    """A frozen dataclass."""


def require(ok: bool, message: str) -> None:
    """For the ``__post_init__`` of options.

    Raises:
        ConfigError: with ``message`` where not ``ok``.
    """
    if not ok:
        raise ConfigError(message)


def parse_drafter(text: str) -> tuple[str, dict[str, object]]:
    """``name`` or ``name:option=value:option=value``; values are JSON, which keeps its own marks, or texts.

    Raises:
        ConfigError: an option is not written as one.
    """
    name, *assignments = pieces(text, ":")
    options: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        require(bool(key and equals), f"drafter {text!r} has option {assignment!r}; write it as option=value.")
        options[key] = said(value)
    return name, options


def pieces(text: str, mark: str) -> list[str]:
    """The text cut at a mark, but not within brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "]}")
        if letter == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse_options(options_class: type[Any], drafter: str, given: Mapping[str, object]) -> Any:
    """An ``options_class`` from keyword arguments; ``drafter`` is named in messages.

    Raises:
        ConfigError: an unknown option, a missing one, a value of the wrong type or out of range.
    """
    known = {field.name: field for field in fields(options_class)}
    valid = f"its options are {', '.join(known)}" if known else "it has no options"
    for name in given:
        near = closest(name, known)
        hint = f" (did you mean {near!r}?)" if near else ""
        require(name in known, f"drafter {drafter!r} has no option {name!r:.60}; {valid}{hint}.")
    types = get_type_hints(options_class)
    for name, value in given.items():
        of = f"option {name!r} of drafter {drafter!r} is {value!r:.60}"
        require(fits(value, types[name]), f"{of}; it must be {describe(types[name])}.")
        if isinstance(value, (int, float)) and _is_number(types[name]):
            require(math.isfinite(value) and abs(value) <= MOST, f"{of}; it must lie within {MOST} of zero.")
    try:
        return options_class(**given)
    except TypeError as error:
        raise ConfigError(f"drafter {drafter!r} lacks an option ({error}); {valid}.") from error


def asked_rows(options: Mapping[str, object]) -> int:
    """Guesses of a round that a drafter's options, or those of the drafters in it, ask for; 0 where they do not say."""
    within = (asked_rows(inner) for inner in options.values() if isinstance(inner, Mapping))
    own = (options.get(name) for name in ("draft_tokens", "tree_nodes"))
    return max((*within, *(rows for rows in own if isinstance(rows, int))), default=0)


@runtime_checkable
class GuessesForEach(Protocol):
    """Options that want so many guesses for every sequence, however many decode together."""

    @property
    def guesses_each(self) -> int: ...


@runtime_checkable
class ChecksFiles(Protocol):
    """Options that may name a model or a head."""

    def check_files(self) -> None:
        """Open it, and compute nothing.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        ...


def check_files(options: Any) -> None:
    """Find out that a model or head which options name is missing, before anything slow is done.

    Raises:
        CheckpointError: what it is called, and what to name instead.
    """
    if isinstance(options, ChecksFiles):
        options.check_files()


def _is_number(kind: Any) -> bool:
    """Whether values of this kind may be numbers."""
    return bool({int, float} & {kind, *get_args(kind)})
