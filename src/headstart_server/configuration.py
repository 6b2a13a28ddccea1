"""A command's options in a file, as vLLM's ``--config`` has them: YAML or JSON, the keys named like the options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from headstart.common.option_values import dashed
from headstart.errors import ConfigError, closest


def configured(context: typer.Context, path: Path | None) -> Path | None:
    """What a file says becomes the defaults of a command's options; the command line goes before it.

    Raises:
        ConfigError: it cannot be read, or has a key that is no option.
    """
    if path is not None:
        defaults: dict[str, Any] = {}
        for key, value in _read(path).items():
            param, opposite = _param(context, path, str(key))
            if param.name in defaults:
                raise ConfigError(f"--config is {path}, which says {key} twice, by two of its names; keep one of them.")
            defaults[param.name] = _as_written(param, not value if opposite else value)
        context.default_map = defaults
    return path


def _read(path: Path) -> Mapping[str, Any]:
    """A file's keys and values.

    Raises:
        ConfigError: it cannot be read, or is no mapping.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"--config is {path}, which cannot be read: {reason}.") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"--config is {path}, which holds no options; write one a line, like max-context: 4096.")
    return found


def _param(context: typer.Context, path: Path, key: str) -> tuple[Any, bool]:
    """The option that a key names, and whether it means the opposite.

    Raises:
        ConfigError: there is none.
    """
    flag = dashed(key)
    params = [param for param in context.command.params if param.param_type_name == "option" and param.name != "config"]
    for param in params:
        if flag in (*param.opts, *param.secondary_opts):
            return param, flag in param.secondary_opts
    near = closest(flag, [name for param in params for name in param.opts])
    meant = f"did you mean {near.removeprefix('--')!r}? " if near else ""
    raise ConfigError(
        f"--config is {path}, which has {key!r}, no option; {meant}{context.command_path} --help-all lists them."
    )


def _as_written(param: Any, value: Any) -> Any:
    """A value as a command line would have it."""
    if value is None:
        return None
    if param.multiple:
        if isinstance(value, Mapping):
            return [f"{key}={json.dumps(item)}" for key, item in value.items()]
        return [str(item) for item in value] if isinstance(value, list) else str(value).split(",")
    return json.dumps(value) if isinstance(value, Mapping | list) else value
