"""The ``headstart`` command: its sub-commands and their exit statuses."""

from __future__ import annotations

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
from headstart.cli.derive import derive
from headstart.cli.drafters import drafters
from headstart.cli.export import export
from headstart.cli.generate import generate
from headstart.cli.native import native
from headstart.cli.plan import plan
from headstart.cli.quality import quality
from headstart.cli.serve import serve
from headstart.cli.theory import theory
from headstart.cli.train import train
from headstart.errors import HeadstartError
from headstart.memory import is_lack_of_memory

OK, FAILED, MISUSED = 0, 1, 2
INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C (signal 2) has ended."""
PIPE_CLOSED = 141
"""Likewise for signal 13: the reader of the output (``head``) has closed the pipe."""

TRACEBACK_VARIABLE = "HEADSTART_TRACEBACK"

# Typer does not export the base class of its usage errors.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
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
            return _fail(str(error))
        except _UsageError as error:
            return _fail(_usage_sentence(error), MISUSED)
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
                f"unexpected {type(error).__name__}: {_one_line(error)}. This is a fault of Headstart; "
                f"{TRACEBACK_VARIABLE}=1 shows where."
            )


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
benches = typer.Typer(rich_markup_mode="markdown")
benches.callback(invoke_without_command=True)(bench)
benches.command("serve")(bench_serve)
app.command()(generate)
app.command()(drafters)
app.command()(serve)
app.command()(derive)
app.add_typer(benches, name="bench")
app.command()(acceptance)
app.command()(audit)
app.command()(quality)
app.command()(plan)
app.command()(theory)
app.command()(train)
app.command()(export)
app.command()(native)


@app.callback(invoke_without_command=True)
def headstart(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Lossless speculative decoding: guess several tokens ahead, check them in one pass, keep what the model would
    have said.

    Examples:

        headstart generate "Once upon a time" --max-tokens 64

        headstart generate --chat "Write a haiku about speed." --compare

        headstart drafters ngram

        headstart derive --layers 10 --out small

        headstart theory --alpha 0.8 --gamma 5
    """
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"headstart {installed('headstart')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the ``headstart`` script."""
    warnings.showwarning = _show_warning
    # A stream that the caller has closed is None.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a question mark.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app(prog_name="headstart")


def _fail(sentence: str, status: int = FAILED) -> int:
    typer.secho("Error: ", fg="red", err=True, nl=False)
    typer.echo(sentence, err=True)
    return status


def _usage_sentence(error: Any) -> str:
    path = error.ctx.command_path if error.ctx is not None else "headstart"
    # Typer has pydantic check values, which puts the name of its exception first.
    message = _one_line(error.format_message()).replace("Value error, ", "")
    return f"{message.rstrip('.')}. Try '{path} --help'."


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"Warning: {message}", err=True)
