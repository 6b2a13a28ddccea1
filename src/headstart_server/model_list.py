"""What ``--models`` names: models by name, each with its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headstart.common.options import declared, own_names
from headstart.entrypoints.engine_options import AsyncEngineOptions
from headstart.errors import ConfigError
from headstart.models.aliases import DEFAULT_MODEL
from headstart_server.arguments import ServeArguments
from headstart_server.model_files import SHARD

_DEPTH = 3
"""Folders inside each other: DIR/ORG/NAME/FILE."""
_BESIDE = ("mmproj",)
"""How files begin that belong to a model and are none."""


def read_models(arguments: ServeArguments) -> dict[str, ServeArguments]:
    """Name -> options, in their order: those of the command, but where the file says otherwise.

    Raises:
        ConfigError: the directory or the file cannot be read, names no model, or an option that is none.
    """
    path = arguments.models
    assert path is not None
    if str(arguments.model) != DEFAULT_MODEL:
        raise ConfigError(f"model is {str(arguments.model)!r:.80}, beside models; keep one of them.")
    if arguments.served_name is not None:
        raise ConfigError("served_name is given beside models, which have names of their own; leave it out.")
    shared = arguments.changed(models=None)
    found = dict(_folder(path, shared) if path.is_dir() else _file(path, shared))
    if not found:
        raise ConfigError(f"models is {path}, which holds no model; put .gguf files or models' folders there.")
    return found


def _folder(path: Path, shared: ServeArguments) -> Iterator[tuple[str, ServeArguments]]:
    for name, model in _models_in(path, "", _DEPTH):
        yield name, shared.changed(model=str(model))


def _models_in(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    """Each model in a folder, by its name there."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"models is {folder}, which cannot be read: {error.strerror}.") from error
    for entry in entries:
        if entry.name.startswith((".", *_BESIDE)):
            continue
        if entry.suffix == ".gguf" and entry.is_file():
            shard = SHARD.fullmatch(entry.stem)
            if shard is None or int(shard["number"]) == 1:
                yield prefix + (entry.stem if shard is None else shard["stem"]), entry
        elif (entry / "config.json").exists():
            yield prefix + entry.name, entry
        elif entry.is_dir() and depth > 1:
            inner = list(_models_in(entry, f"{prefix}{entry.name}/", depth - 1))
            # A folder of one file is that model, as in llama.cpp.
            lone = len(inner) == 1 and inner[0][1].parent == entry and inner[0][1].is_file()
            yield from [(prefix + entry.name, inner[0][1])] if lone else inner


def _file(path: Path, shared: ServeArguments) -> Iterator[tuple[str, ServeArguments]]:
    for name, given in _read(path).items():
        where = f"models is {path}, which says of {name!r:.60}"
        options = {"model": given} if isinstance(given, str) else given
        if not isinstance(options, Mapping) or not options.get("model"):
            raise ConfigError(f"{where} no model; write {name}: MODEL, or options with a model among them.")
        known = {each.name for each in declared(AsyncEngineOptions)}
        try:
            own = own_names(ServeArguments, {str(key).replace("-", "_"): value for key, value in options.items()})
            foreign = next((key for key in own if key not in known), None)
            if foreign is not None:
                raise ConfigError(f"{foreign} is of the whole server; give it to the command.")
            yield str(name), ServeArguments.read({**shared.given(), **own})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def _read(path: Path) -> Mapping[Any, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"models is {path}, which cannot be read: {reason}.") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"models is {path}, which names no models; write NAME: MODEL, one a line.")
    return found
