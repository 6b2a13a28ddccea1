"""How commands speak of themselves: types in their help, and what was probably meant by what they do not know."""

from __future__ import annotations

import os
import re
from typing import Any

import typer
from typer.core import TyperCommand

from headstart.errors import closest

_TYPES = {"str": "TEXT", "int": "N", "float": "X"}


class Command(TyperCommand):
    """A command whose help shows what to write after an option, and nothing after a switch."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As the base class; for people."""
        return readable(super().get_params(ctx), ctx)


def readable(params: list[Any], context: Any) -> list[Any]:
    """The same parameters, with placeholders in place of the names of Python's types."""
    for param in params:
        if param.param_type_name != "option":
            # An argument has a name already, and its type is shown beside that.
            shown = _shown_type(param, context)
            if shown is not None and "|" not in shown:
                param.display_type_rich = lambda ctx: None
        elif param.metavar is not None:
            pass
        elif getattr(param, "is_flag", False):
            param.metavar = ""
        elif (shown := _shown_type(param, context)) is not None:
            param.metavar = shown
    return params


def _shown_type(param: Any, context: Any) -> str | None:
    """Names with bars between them are what can be written; other types of Typer's are names of Python's."""
    try:
        shown = str(param.display_type(context)).strip("<>")
    except AttributeError:  # an older Typer has short names of its own
        return None
    return shown if "|" in shown else _TYPES.get(shown.removesuffix(" range"), shown.upper())


def usage_sentence(error: Any) -> str:
    """A usage error in one sentence, with what was probably meant, and where to read more."""
    path = error.ctx.command_path if error.ctx is not None else "headstart"
    # Typer has pydantic check values, which puts the name of its exception first.
    message = one_line(error.format_message()).replace("Value error, ", "").rstrip(".")
    if match := re.match(r"(No such option:? '?(-[^\s']+)'?)", message):
        message, given, known = match[1], match[2], _options(error.ctx)
    elif match := re.match(r"(No such command '(.*?)')", message):
        message, given, known = match[1], match[2], list(getattr(error.ctx.command, "commands", ()))
    elif match := re.search(r"'([^']*)' is not one of ('.*')", message):
        given, known = match[1], re.findall(r"'([^']*)'", match[2])
    else:
        return f"{message}. Try '{path} --help'."
    near = closest(given, known)
    return f"{message}{f'; did you mean {near!r}?' if near else '.'} Try '{path} --help'."


def tell_error(sentence: str) -> None:
    """Say on stderr what went wrong."""
    typer.echo(f"{_styled('Error: ', fg='red')}{sentence}", err=True)


def tell_aside(sentence: str) -> None:
    """Say on stderr what is not the answer, in a subdued way."""
    typer.echo(_styled(sentence, dim=True), err=True)


def _styled(text: str, **style: Any) -> str:
    """In colour, which Typer takes away where there is no terminal, but not where NO_COLOR is set."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)


def one_line(text: object) -> str:
    """The words of a text."""
    return " ".join(str(text).split())


def _options(context: Any) -> list[str]:
    """Long names: a short one is like every other short one."""
    params = [] if context is None else context.command.params
    names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
    return [*(name for name in names if name.startswith("--")), "--help"]
