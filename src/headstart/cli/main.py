"""The ``headstart`` command: its sub-commands and their exit statuses."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headstart.cli.acceptance import acceptance
from headstart.cli.audit import audit
from headstart.cli.bench import bench
from headstart.cli.bench_serve import bench_serve
from headstart.cli.chat import chat
from headstart.cli.derive import derive
from headstart.cli.drafters import drafters
from headstart.cli.export import export
from headstart.cli.generate import generate
from headstart.cli.import_head import import_
from headstart.cli.lab import lab
from headstart.cli.native import native
from headstart.cli.paper import paper
from headstart.cli.plan import plan
from headstart.cli.quality import quality
from headstart.cli.serve import serve
from headstart.cli.theory import theory
from headstart.cli.train import train
from headstart.cli.transcribe import transcribe
from headstart.cli.wording import Command, one_line, readable, tell_error, usage_sentence
from headstart.errors import CheckpointError, ConfigError, HeadstartError, LogitsError, RequestError
from headstart.memory import is_lack_of_memory

OK, FAILED = 0, 1
MISUSED = 2
"""The command, its options or what it was given to read is at fault: nothing but these has to change."""
INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C (signal 2) has ended."""
PIPE_CLOSED = 141
"""Likewise for signal 13: the reader of the output (``head``) has closed the pipe."""

TRACEBACK_VARIABLE = "HEADSTART_TRACEBACK"

# Typer does not export the base class of its usage errors.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Group(TyperGroup):
    """Commands under one name; its help is worded as theirs is."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As the base class; for people."""
        return readable(super().get_params(ctx), ctx)


class Commands(Group):
    """The group of all sub-commands: whatever they raise becomes one sentence on stderr and an exit status."""

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
            return _fail(str(error), MISUSED if _is_input(error) else FAILED)
        except _UsageError as error:
            return _fail(usage_sentence(error), MISUSED)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except SystemExit as error:
            # Rich, or Typer where it shows help, handles a closed pipe itself and exits with a status of its own.
            if isinstance(error.__context__, BrokenPipeError):
                return PIPE_CLOSED
            raise
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE):
                raise
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
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
USE, MEASURE, TRAIN, MORE = "Use a model", "Measure", "Make drafters", "More"

benches = typer.Typer(rich_markup_mode="markdown", cls=Group)
benches.callback(invoke_without_command=True)(bench)
benches.command("serve", cls=Command)(bench_serve)
app.command(cls=Command, rich_help_panel=USE)(chat)
app.command(cls=Command, rich_help_panel=USE)(generate)
app.command(cls=Command, rich_help_panel=USE)(transcribe)
app.command(cls=Command, rich_help_panel=USE)(serve)
app.command(cls=Command, rich_help_panel=USE)(lab)
app.command(cls=Command, rich_help_panel=USE)(drafters)
app.add_typer(benches, name="bench", rich_help_panel=MEASURE)
app.command(cls=Command, rich_help_panel=MEASURE)(plan)
app.command(cls=Command, rich_help_panel=MEASURE)(acceptance)
app.command(cls=Command, rich_help_panel=MEASURE)(paper)
app.command(cls=Command, rich_help_panel=MEASURE)(audit)
app.command(cls=Command, rich_help_panel=MEASURE)(quality)
app.command(cls=Command, rich_help_panel=TRAIN)(train)
app.command(cls=Command, rich_help_panel=TRAIN)(derive)
app.command(cls=Command, rich_help_panel=TRAIN)(export)
app.command("import", cls=Command, rich_help_panel=TRAIN)(import_)
app.command(cls=Command, rich_help_panel=MORE)(theory)
app.command(cls=Command, rich_help_panel=MORE)(native)


@app.callback(invoke_without_command=True)
def headstart(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Lossless speculative decoding: guess several tokens ahead, check them in one pass, keep what the model would
    have said.

    Examples:

        headstart chat

        headstart generate "Once upon a time" --max-tokens 64

        headstart generate --chat "Write a haiku about speed." --compare

        headstart serve

        headstart drafters ngram

        headstart bench
    """
    if version:
        from headstart import __version__

        typer.echo(f"headstart {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the ``headstart`` script."""
    # A start makes millions of objects that stay: looking for garbage among them takes a tenth of its time.
    gc.set_threshold(100_000, 20, 50)
    warnings.showwarning = _show_warning
    # A stream that the caller has closed is None.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a question mark.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app(prog_name="headstart")


def _fail(sentence: str, status: int = FAILED) -> int:
    tell_error(sentence)
    return status


def _is_input(error: HeadstartError) -> bool:
    return isinstance(error, ConfigError | RequestError | CheckpointError) and not isinstance(error, LogitsError)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"Warning: {message}", err=True)
