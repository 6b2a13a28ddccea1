"""The ``headstart`` command: its sub-commands and their exit statuses."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Annotated, Any

import typer

from headstart.cli import commands
from headstart.cli.commands import Listed
from headstart.cli.wording import Command, Group, UsageError, one_line, tell_error, usage_sentence
from headstart.errors import CheckpointError, ConfigError, DrafterError, HeadstartError, LogitsError, RequestError

OK, FAILED = 0, 1
MISUSED = 2
"""The command, its options or what it was given to read is at fault: nothing but these has to change."""
INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C (signal 2) has ended."""
PIPE_CLOSED = 141
"""Likewise for signal 13: the reader of the output (``head``) has closed the pipe."""

TRACEBACK_VARIABLE = "HEADSTART_TRACEBACK"


class Found(MutableMapping[str, Any]):
    """Commands that are made when somebody asks for them, so that none has to be imported for another.

    Args:
        below: what is listed there; None: all commands.
    """

    def __init__(self, below: Mapping[str, Listed] | None = None) -> None:
        self._below = below
        self._made: dict[str, Any] = {}

    @property
    def listed(self) -> Mapping[str, Listed]:
        return commands.every() if self._below is None else self._below

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            found = commands.find(name) if self._below is None else self._below.get(name)
            if found is None:
                raise KeyError(name)
            self._made[name] = made(name, found)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)


class FoundGroup(Group):
    """A group whose commands are made when they are asked for."""

    commands: Any

    def listed(self) -> Mapping[str, tuple[str, str]]:
        """As the base class, without importing them."""
        return {name: (each.panel, each.help) for name, each in self.commands.listed.items()}


def made(name: str, listed: Listed) -> Any:
    """The command that is listed so.

    Raises:
        ConfigError: its module cannot be imported.
    """
    function = listed.load(name)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    if listed.commands:
        alone.callback(cls=FoundGroup, invoke_without_command=True)(function)
    else:
        alone.command(cls=Command)(function)
    command: Any = typer.main.get_command(alone)
    command.name, command.first = name, listed.first
    if listed.commands:
        command.commands = Found(listed.commands)
    return command


class Commands(FoundGroup):
    """The group of all commands: whatever they raise becomes one sentence on stderr and an exit status."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = Found()

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        sys.exit(self._status(*args, **kwargs))

    def invoke(self, context: Any) -> Any:
        try:
            super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # What is still buffered has nowhere to go; the interpreter must not try to write it when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from error

    def _status(self, *args: Any, **kwargs: Any) -> int:
        try:
            status = super().main(*args, **kwargs)
            return status if isinstance(status, int) else OK
        except HeadstartError as error:
            if isinstance(error, DrafterError) and os.environ.get(TRACEBACK_VARIABLE):
                raise
            return _fail(str(error), MISUSED if _is_input(error) else FAILED)
        except UsageError as error:
            return _fail(usage_sentence(error), MISUSED)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except SystemExit as error:
            # Rich, or Typer where it shows help, handles a closed pipe itself and exits with a status of its own.
            if isinstance(error.__context__, BrokenPipeError):
                return PIPE_CLOSED
            raise
        except Exception as error:
            if _pressed:
                # In the middle of an import, Ctrl-C may come out as any error.
                return INTERRUPTED
            if os.environ.get(TRACEBACK_VARIABLE):
                raise
            from headstart.common.memory import is_lack_of_memory

            if is_lack_of_memory(error):
                return _fail("there is not enough memory for this; free some, or choose a smaller model or cache.")
            if isinstance(error, OSError) and error.strerror:
                # A full disk, say, or a folder that was removed: no fault of Headstart.
                return _fail(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}.")
            return _fail(
                f"unexpected {type(error).__name__}: {one_line(error)}. This is a fault of Headstart; "
                f"{TRACEBACK_VARIABLE}=1 shows where."
            )


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def headstart(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Lossless speculative decoding: guess several tokens ahead, check them in one pass, keep what the model would
    have said.

    Examples:

        headstart chat

        headstart generate --chat "Write a haiku about speed." --compare

        headstart serve
    """
    if version:
        from headstart import __version__

        typer.echo(f"headstart {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


_pressed: list[int] = []
"""Signals of Ctrl-C that this process has had."""


def _press(number: int, _: object) -> None:
    _pressed.append(number)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command of ``sys.argv``; does not return."""
    # ``headstart.__main__`` has let Ctrl-C end the process at once; from here on it has something to tidy up.
    heard = signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler)
    if heard:
        signal.signal(signal.SIGINT, _press)
    # A start makes millions of objects that stay: looking for garbage among them takes a tenth of its time.
    gc.set_threshold(100_000, 20, 50)
    warnings.showwarning = _show_warning
    # A stream that the caller has closed is None.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a question mark.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(prog_name="headstart")
    finally:
        if heard:
            # What Python still does before it ends is nothing that a user has to hear of.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _fail(sentence: str, status: int = FAILED) -> int:
    tell_error(sentence)
    return status


def _is_input(error: HeadstartError) -> bool:
    return isinstance(error, ConfigError | RequestError | CheckpointError) and not isinstance(error, LogitsError)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"Warning: {message}", err=True)
