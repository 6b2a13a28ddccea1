"""Options that are declared once: a dataclass whose fields carry their help, bounds, choices and other names.

Whatever takes options (the library's classes, commands, configuration files, servers) reads them from that dataclass,
so that all refuse the same values in the same words. Importing this imports nothing heavy.
"""

from __future__ import annotations

import math
import operator
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_type_hints,
)

from headstart.common.option_values import choices_of, describe, fits, members, said, switch
from headstart.errors import ConfigError, closest, meant

C = TypeVar("C", bound=type)
P = ParamSpec("P")
Made = TypeVar("Made")
Owner = TypeVar("Owner")


class OptionError(ConfigError):
    """An option has a value that it cannot have: the sentence is its ``name``, then the ``complaint``."""

    def __init__(self, name: str, complaint: str) -> None:
        super().__init__(f"{name} {complaint}")
        self.name, self.complaint = name, complaint


class UnknownOptionError(ConfigError, TypeError):
    """An option that is none, as a Python call with an unknown keyword."""


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its name, type and default: the metadata of an ``Annotated`` field."""

    help: str
    """Full sentences, without its bounds and default."""
    group: str = ""
    """The heading that it stands under in a command's help."""
    names: tuple[str, ...] = ()
    """What else it is called: as a keyword, as a key of a file, and with dashes in a command."""
    elsewhere: tuple[str, ...] = ()
    """What it is called in other programs: likewise, but help does not show it."""
    opposites: tuple[str, ...] = ()
    """Names that other programs have for switches that mean the opposite."""
    flags: tuple[str, ...] = ()
    """What a command calls it besides: a letter, or a name that is shown first."""
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    read: Callable[[str, Any], Any] | None = None
    """Turns what may be given (the option's name, and a value) into a value of its type."""
    repeated: bool = False
    """Whether a command may say it several times, once for each item."""
    written: bool = True
    """Whether commands and files can say it; False: Python alone."""

    @property
    def range(self) -> str:
        """What its numbers must be, as the end of a sentence; empty: any."""
        low = f"[{self.least:.15g}" if self.least is not None else None if self.above is None else f"({self.above:.15g}"
        high = f"{self.most:.15g}]" if self.most is not None else None if self.below is None else f"{self.below:.15g})"
        if low and high:
            return f"lie in {low}, {high}"
        if self.least is not None:
            return f"be {self.least:.15g} or more"
        if self.above is not None:
            return f"be above {self.above:.15g}"
        return "" if high is None else f"be {'at most' if self.most is not None else 'below'} {high[:-1]}"

    def admits(self, value: float) -> bool:
        """Whether a number lies within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


@dataclass(frozen=True)
class Foreign:
    """An argument of another engine that Headstart has no option for."""

    neutral: Callable[[Any], bool]
    """Whether a value asks for nothing that Headstart would do otherwise. None always does."""
    instead: str
    """What to do in place of any other value: the end of a sentence."""
    same_as: str = ""
    """An option whose own value asks for nothing either."""


@dataclass(frozen=True)
class Declared:
    """A field of an options class."""

    name: str
    hint: Any
    """Its type, without metadata."""
    option: Option
    default: Any

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a value may have."""
        return members(self.hint)

    @property
    def choices(self) -> type[StrEnum] | None:
        """What may be named, where it is a name among a few."""
        return choices_of(self.hint)

    def checked(self, value: Any) -> Any:
        """The value in its declared type.

        Raises:
            OptionError: it has none, or is out of bounds.
        """
        return checked(self.name, value, self.hint, self.option)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def declares(cls: C) -> C:
    """A frozen dataclass of options: made by any of their names, its values checked.

    Raises (the class that it makes):
        UnknownOptionError: there is no option of this name.
        ConfigError: an option is given twice, or has a value that it cannot have.
    """
    for name, default in vars(cls).get("_defaults", {}).items():
        cls.__annotations__[name] = get_type_hints(cls, include_extras=True)[name]
        setattr(cls, name, default)
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    plain: Any = made.__init__

    @wraps(plain)
    def init(self: object, *args: Any, **given: Any) -> None:
        plain(self, *args, **own_names(made, given))

    made.__init__ = init
    return cast(C, made)


class Options:
    """What classes of options have in common."""

    _foreign: ClassVar[Mapping[str, Foreign]] = {}
    """Arguments of other engines that are taken where they ask for nothing."""
    _defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of inherited options that this class has otherwise."""

    def __post_init__(self) -> None:
        for each in declared(type(self)):
            object.__setattr__(self, each.name, each.checked(getattr(self, each.name)))

    def given(self, kind: type[Any] | None = None) -> dict[str, Any]:
        """All options by name; ``kind``: those of a class that this one derives from."""
        return {each.name: getattr(self, each.name) for each in declared(kind or type(self))}

    def changed(self, **values: Any) -> Self:
        """The same with other values."""
        return type(self)(**{**self.given(), **values})

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """From a file or a command, which may write a number, a switch or a mapping as text.

        Raises:
            ConfigError: as the class itself.
        """
        named = own_names(cls, given)
        return cls(**{each.name: from_text(each, named[each.name]) for each in declared(cls) if each.name in named})


def declared(cls: type[Any]) -> tuple[Declared, ...]:
    """The options of a dataclass, in the order of their declaration; fields that carry no ``Option`` are left out."""
    return _declared(cast(Any, cls))


@cache
def _declared(cls: Any) -> tuple[Declared, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for each in fields(cls):
        for option in getattr(hints[each.name], "__metadata__", ()):
            if isinstance(option, Option):
                found.append(Declared(each.name, get_args(hints[each.name])[0], option, each.default))
    return tuple(found)


def option_of(cls: type[Any], name: str) -> Declared:
    """An option by its name."""
    return next(each for each in declared(cls) if each.name == name)


def own_names(cls: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, by the names that the options have here.

    Raises:
        UnknownOptionError: there is no such option.
        ConfigError: one is given under two names, or asks for what cannot be had.
    """
    own: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in given.items():
        place = _places(cast(Any, cls)).get(name)
        if place is None:
            _pass_over(cls, name, value, given)
            continue
        target, opposite = place
        if target in said:
            raise ConfigError(f"{said[target]} and {name} say the same; give one of them.")
        said[target] = name
        said_so = switch(value)
        own[target] = not said_so if opposite and isinstance(said_so, bool) else value
    return own


def checked(name: str, value: Any, hint: Any, option: Option) -> Any:
    """A value of an option in its declared type.

    Raises:
        OptionError: it has none, or is out of bounds.
    """
    if option.read is not None:
        value = option.read(name, value)
    choices, kinds = choices_of(hint), members(hint)
    if choices is not None and isinstance(value, str):
        try:
            return choices(value)
        except ValueError:
            raise OptionError(name, f"is {str(value)!r:.60}; {meant(value, choices)}") from None
    if Path in kinds and isinstance(value, str) and str not in kinds:
        value = Path(value)
    if int in kinds and not isinstance(value, bool | float):
        with suppress(TypeError):
            value = operator.index(value)
    if not fits(value, hint):
        raise OptionError(name, f"is {value!r:.60}; it must be {describe(hint)}.")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise OptionError(name, f"is {value}; it must be a finite number.")
        if not option.admits(value):
            raise OptionError(name, f"is {value}; it must {option.range}.")
    return tuple(value) if isinstance(value, list) else value


def from_text(each: Declared, value: Any) -> Any:
    """What a text says, where the option's values are no texts; what is no text stays as it is."""
    if not isinstance(value, str) or each.choices is not None or {str, Path} & {*each.kinds} or each.option.read:
        return value
    text = value.strip()
    if NoneType in each.kinds and text.lower() in ("", "none", "null"):
        return None
    if bool in each.kinds:
        return switch(value)
    for kind in (int, float):
        if kind in each.kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return said(text) if text[:1] in ("{", "[") else value


def takes(kind: Callable[P, Made]) -> Callable[[Callable[[Owner, Made], None]], Callable[Concatenate[Owner, P], None]]:
    """Let an initialiser that wants options take them one by one: by the names, types and defaults of the class."""

    def wrap(init: Callable[[Owner, Made], None]) -> Callable[Concatenate[Owner, P], None]:
        @wraps(init)
        def wrapped(self: Owner, *args: P.args, **given: P.kwargs) -> None:
            init(self, kind(*args, **given))

        own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        wrapped.__signature__ = Signature([own, *_parameters(cast(type[Any], kind))])  # type: ignore[attr-defined]
        return cast(Callable[Concatenate[Owner, P], None], wrapped)

    return wrap


def tells_options(kind: type[Any]) -> Callable[[C], C]:
    """Put the options of ``kind`` into a class's docstring, as its arguments."""

    def tell(cls: C) -> C:
        lines = "".join(_wrapped(f"{each.name}: {each.option.help}") for each in declared(kind))
        text, raises, errors = (cls.__doc__ or "").partition("    Raises:\n")
        cls.__doc__ = f"{text}    Args:\n{lines}\n{raises}{errors}"
        return cls

    return tell


def _wrapped(text: str) -> str:
    """A paragraph of a docstring's arguments."""
    return textwrap.fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 12) + "\n"


def _parameters(kind: type[Any]) -> list[Parameter]:
    """Of the constructor, with plain types."""
    hints = {each.name: each.hint for each in declared(kind)}
    return [
        each.replace(annotation=hints.get(each.name, each.annotation)) for each in signature(kind).parameters.values()
    ]


@cache
def _places(cls: Any) -> dict[str, tuple[str, bool]]:
    """Every name -> the option's own, and whether it means the opposite."""
    places = {each.name: (each.name, False) for each in fields(cls)}
    for each in declared(cls):
        places |= {name: (each.name, False) for name in (*each.option.names, *each.option.elsewhere)}
        places |= {name: (each.name, True) for name in each.option.opposites}
    return places


def _pass_over(cls: type[Options], name: str, value: Any, given: Mapping[str, Any]) -> None:
    foreign = cls._foreign.get(name)
    if foreign is None:
        near = closest(name, _places(cast(Any, cls)))
        hint = f"did you mean {near!r}?" if near else "leave it out."
        raise UnknownOptionError(f"there is no option {name!r:.60}; {hint}")
    if value is not None and not foreign.neutral(value) and value != given.get(foreign.same_as):
        raise ConfigError(f"{name} is {value!r:.60}, which Headstart does not do; {foreign.instead}.")
