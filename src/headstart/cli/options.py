"""Options that commands share, each declared once; those of the engine are in ``engine_options``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from headstart.drafting.speculation import GROUP
from headstart.errors import ConfigError

SPECULATION, SAMPLING, STOPPING, OUTPUT = GROUP, "Sampling", "Stopping", "Output"

Temperature = Annotated[
    float, typer.Option("--temperature", help="0: greedy, the likeliest token each time.", rich_help_panel=SAMPLING)
]

MaxTokens = Annotated[
    int, typer.Option("--max-tokens", help="Most output tokens.", rich_help_panel=STOPPING, metavar="N")
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Do not stop at the model's end-of-sequence token.", rich_help_panel=STOPPING),
]

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object per line, instead of text.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress and no summary to stderr.", rich_help_panel=OUTPUT)
]


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
