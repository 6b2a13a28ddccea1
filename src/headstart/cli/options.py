"""Options that commands share, each declared once; those of the engine are in ``engine_options``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from headstart.drafting.speculation import GROUP
from headstart.errors import ConfigError

SPECULATION, SAMPLING, STOPPING, OUTPUT = GROUP, "Sampling", "Stopping", "Output"


def said(help: str, *flags: str, panel: str = SAMPLING, metavar: str | None = None) -> Any:
    """An option of a command: its help, what it is called if not as its parameter, and the heading it stands under."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, metavar=metavar)


Temperature = Annotated[float, said("0: greedy, the likeliest token each time.", "--temperature")]

MaxTokens = Annotated[int, said("Most output tokens.", "--max-tokens", panel=STOPPING, metavar="N")]
IgnoreEos = Annotated[bool, said("Do not stop at the model's end-of-sequence token.", "--ignore-eos", panel=STOPPING)]

Json = Annotated[bool, said("Print JSON, one object per line, instead of text.", "--json", panel=OUTPUT)]
Quiet = Annotated[bool, said("Print no progress and no summary to stderr.", "--quiet", "-q", panel=OUTPUT)]


def made_folder(option: typer.CallbackParam, out: Path | None) -> Path | None:
    """Make the folder that an option names before anything slow is done, not when its results would be lost.

    Raises:
        ConfigError: it cannot be made or written.
    """
    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        name = option.opts[0]
        raise ConfigError(f"{name} is {out}, a folder that cannot be written: {error.strerror}.") from error
    return out


def new_folder(option: typer.CallbackParam, out: Path) -> Path:
    """The folder of a command that writes a whole model or head: what lies in a folder is not written over.

    Raises:
        ConfigError: it holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{option.opts[0]} is {out}, which exists already; name a new folder, or empty it.")
    return out
