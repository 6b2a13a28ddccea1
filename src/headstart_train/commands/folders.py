"""Folders that commands of the wings write to, looked at before anything slow is done."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import typer

from headstart.errors import ConfigError


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
