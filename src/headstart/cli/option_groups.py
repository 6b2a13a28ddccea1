"""Options that several commands take together: a dataclass whose fields are options stands for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from headstart.common.option_values import dashed
from headstart.common.options import Declared, OptionError, declared, option_of

_PLAIN = ("", "be 0 or more", "be 1 or more", "be above 0")
"""Bounds that go without saying."""


@dataclass(frozen=True)
class Only:
    """Beside a group's type: the options of it that a command takes. The others have their defaults."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


def with_groups(
    command: Callable[..., None], found: Mapping[str, type[Any]] = MappingProxyType({})
) -> Callable[..., None]:
    """The command as Typer reads it: each parameter that is such a dataclass becomes its fields, in its place.

    A field that is declared as an ``Option`` becomes one of the command line; others carry Typer's own. The command
    itself is called with the dataclass, made of what was given on the command line.

    Args:
        found: further dataclasses by name, of packages that the command does not know: its ``**`` parameter.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type[Any], list[Parameter]]] = {}
    shown: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind, only = _group(hints[parameter.name])
        if parameter.kind is Parameter.VAR_KEYWORD:
            for name, more in found.items():
                groups[name] = more, _options_of(more, None)
                shown += groups[name][1]
        elif kind is not None:
            groups[parameter.name] = kind, _options_of(kind, only)
            shown += groups[parameter.name][1]
        else:
            shown.append(parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: _made(kind, {each.name: given.pop(each.name) for each in options})
            for name, (kind, options) in groups.items()
        }
        command(**given, **made)

    called.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _group(hint: Any) -> tuple[type[Any] | None, Only | None]:
    """A group's class, and which of its options are wanted; no class: the parameter is an option itself."""
    kind, *extras = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    only = next((each for each in extras if isinstance(each, Only)), None)
    return (kind, only) if isinstance(kind, type) and is_dataclass(kind) else (None, None)


def _options_of(group: type[Any], only: Only | None) -> list[Parameter]:
    options = {each.name: each for each in declared(group)}
    hints = get_type_hints(group, include_extras=True)
    found = []
    for each in fields(group):
        option = options.get(each.name)
        if only is not None and each.name not in only.names:
            continue
        if option is None:
            kind, default = hints[each.name], each.default
        elif option.option.written:
            kind, default = _annotation(option), _default(option)
        else:
            continue
        found.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return found


def _made(group: type[Any], given: Mapping[str, Any]) -> Any:
    """The group, of what the command line says.

    Raises:
        BadParameter: a value is out of bounds, in the words of the declaration.
    """
    repeated = {each.name for each in declared(group) if each.option.repeated}
    try:
        return group(**{name: value for name, value in given.items() if value or name not in repeated})
    except OptionError as error:
        raise typer.BadParameter(
            str(error), param_hint=_flags(option_of(group, error.name))[0].partition("/")[0]
        ) from None


def _annotation(each: Declared) -> Any:
    """An option's type as Typer takes it: what is checked is checked where it is declared, for all alike."""
    option, optional = each.option, each.default is None
    help_text = f"{option.help} Must {option.range}." if option.range not in _PLAIN else option.help
    kind: Any
    if bool in each.kinds:
        kind, metavar = bool, None
    elif option.repeated:
        kind, metavar, help_text = list[str] | None, option.metavar, f"{help_text} May be repeated."
    else:
        kind = next((kind for kind in (int, float) if kind in each.kinds), str)
        metavar = option.metavar or ("|".join(each.choices) if each.choices is not None else None)
        kind = kind | None if optional else kind
    return Annotated[
        kind, typer.Option(*_flags(each), help=help_text, rich_help_panel=option.group or None, metavar=metavar)
    ]


def _flags(each: Declared) -> list[str]:
    """What the option is called in a command, what is shown first first."""
    option = each.option
    first = [flag for flag in option.flags if flag.startswith("--")]
    names = dict.fromkeys([*first, *map(dashed, (each.name, *option.names, *option.elsewhere))])
    letters = [flag for flag in option.flags if flag not in first]
    if bool not in each.kinds:
        return [*names, *letters]
    switches = [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    return [*switches, *letters, *(f" /{dashed(name)}" for name in option.opposites)]


def _default(each: Declared) -> Any:
    """As the command line would say it."""
    return None if each.option.repeated else getattr(each.default, "value", each.default)
