"""How commands speak of themselves: types in their help, and what was probably meant by what they do not know."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headstart.cli import other_programs
from headstart.errors import closest

_TYPES = {"str": "TEXT", "int": "N", "float": "X"}
# Typer does not export the base class of its usage errors.
UsageError: Any = typer.BadParameter.__bases__[0]


class _Spoken:
    """What commands and groups of commands share: their help, and names that other programs have for their options.

    Help shows what to write after an option, and nothing after a switch.
    """

    params: list[Any]
    first: Sequence[str] = ()
    """Options that the short page of help explains."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._more: list[Any] = []
        if any("--model" in param.opts for param in self.params):
            self.params += _options({"threads": (int | None, _THREADS)})
        self.params += _options({"help_all": (bool, _HELP_ALL)})
        other_programs.take_other_names(self.params)

    def get_params(self, ctx: Any) -> list[Any]:
        """As the base class; for people."""
        return readable([*super().get_params(ctx), *self._more], ctx)  # type: ignore[misc]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """As the base class; names that mean something elsewhere alone are refused with what to do instead."""
        # What stands behind a command's name is that command's to read.
        before = list(takewhile(lambda word: word != "--" and word not in self.listed(), args))
        hinted = other_programs.hints(before, self.params)
        self._more += [option for name, hint in hinted.items() for option in _refusing(name, hint)]
        named = [word.partition("=")[0] if word.partition("=")[0] in hinted else word for word in before]
        try:
            return super().parse_args(ctx, named + args[len(before) :])  # type: ignore[misc]
        except UsageError as error:
            error.ctx = error.ctx or ctx  # an option without its value does not know whose it is
            raise

    def invoke(self, ctx: Any) -> Any:
        """As the base class, if what is named is there."""
        if not getattr(ctx, "_protected_args", None):
            from headstart.cli import names_given

            names_given.check(ctx.params)
        return super().invoke(ctx)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The short page (``help_pages``)."""
        formatter.write(self.page(ctx, whole=False))

    def page(self, ctx: Any, whole: bool) -> str:
        """The help, short or whole."""
        from headstart.cli import help_pages

        return help_pages.page(self, ctx, whole, self.listed())

    def listed(self) -> Mapping[str, tuple[str, str]]:
        """The commands below: name -> panel of the help and line of explanation."""
        return {}


class Command(_Spoken, TyperCommand):
    """A command."""


class Group(_Spoken, TyperGroup):
    """Commands under one name, and what that does by itself."""


def readable(params: list[Any], context: Any) -> list[Any]:
    """The same parameters, with placeholders in place of the names of Python's types."""
    for param in params:
        if param.param_type_name != "option" or param.metavar is not None:
            continue
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif (shown := shown_type(param, context)) is not None:
            param.metavar = shown
    return params


def shown_type(param: Any, context: Any) -> str | None:
    """Names with bars between them are what can be written; other types of Typer's are names of Python's."""
    try:
        shown = re.sub(r"list\[(.*)\]", r"\1", str(param.display_type(context)).strip("<>"))
    except AttributeError:  # an older Typer has short names of its own
        return None
    return shown if "|" in shown else _TYPES.get(shown.removesuffix(" range"), shown.upper())


def _show_whole(context: typer.Context, wanted: bool) -> None:
    if wanted:
        command: Any = context.command
        typer.echo(command.page(context, whole=True))
        raise typer.Exit


def _set_threads(threads: int | None) -> None:
    """For this process: PyTorch and the native pass look at the variable when they start."""
    if threads is None:
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


_HELP_ALL = typer.Option(
    "--help-all", help="Show every option and exit.", is_eager=True, expose_value=False, callback=_show_whole
)
_THREADS = typer.Option(
    "--threads",
    "-t",
    min=1,
    max=1024,
    help="Threads that compute. Left out: OMP_NUM_THREADS, or one a core that this process may use.",
    expose_value=False,
    callback=_set_threads,
    rich_help_panel="Model",
)


def _options(declared: Mapping[str, tuple[Any, Any]]) -> list[Any]:
    """Options as Typer makes them of a function's parameters."""

    def function(**_: Any) -> None: ...

    shown = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=False if kind is bool else None, annotation=Annotated[kind, info]
        )
        for name, (kind, info) in declared.items()
    ]
    function.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    made = typer.Typer(add_completion=False)
    made.command()(function)
    return list(typer.main.get_command(made).params)


def _refusing(name: str, hint: str) -> list[Any]:
    """An option that nobody sees, and that raises a usage error where it is given."""

    def refuse(context: typer.Context, given: bool) -> None:
        if given:
            raise UsageError(f"No such option {name!r}: {hint}.", context)

    info = typer.Option(name, hidden=True, is_eager=True, expose_value=False, callback=refuse)
    return _options({f"other_{name.strip('-').replace('-', '_')}": (bool, info)})


def usage_sentence(error: Any) -> str:
    """A usage error in one sentence, with what was probably meant, and where to read more."""
    path = error.ctx.command_path if error.ctx is not None else "headstart"
    # Typer has pydantic check values, which puts the name of its exception first.
    message = one_line(error.format_message()).replace("Value error, ", "").rstrip(".")
    if match := re.fullmatch(r"(No such option:? '?(-[^\s':]+)'?)(\W.*)?", message):
        if (match[3] or "").startswith(": "):
            return f"{message}. Try '{path} --help'."
        message, given, known = match[1], match[2], _long_names(error.ctx)
    elif match := re.match(r"(No such command '(.*?)')", message):
        if match[2] in other_programs.COMMANDS:
            return f"{match[1]}: {other_programs.COMMANDS[match[2]]}. Try '{path} --help'."
        message, given, known = match[1], match[2], list(getattr(error.ctx.command, "commands", ()))
    elif match := re.search(r"'([^']*)' is not one of ('.*')", message):
        given, known = match[1], re.findall(r"'([^']*)'", match[2])
    else:
        if "unexpected extra argument" in message and any(
            "--model" in param.opts for param in error.ctx.command.params
        ):
            message += "; a model is named with --model"
        return f"{message}. Try '{path} --help'."
    near = closest(given, known)
    return f"{message}{f'; did you mean {near!r}?' if near else '.'} Try '{path} --help'."


def tell_error(sentence: str) -> None:
    """Say on stderr what went wrong."""
    typer.echo(f"{styled('Error: ', fg='red')}{sentence}", err=True)


def tell_aside(sentence: str) -> None:
    """Say on stderr what is not the answer, in a subdued way."""
    typer.echo(styled(sentence, dim=True), err=True)


def styled(text: str, **style: Any) -> str:
    """In colour, which Typer takes away where there is no terminal, but not where NO_COLOR is set."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)


def one_line(text: object) -> str:
    """The words of a text."""
    return " ".join(str(text).split())


def _long_names(context: Any) -> list[str]:
    """A short one is like every other short one."""
    params = [] if context is None else context.command.params
    names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
    return [*(name for name in names if name.startswith("--")), "--help"]
