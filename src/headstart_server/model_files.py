"""The files of a model on this machine: how large they are, and when they were written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headstart.models.aliases import ALIASES
from headstart.models.files import exists, local_path

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
"""The name of a file of several, without its ending."""


@dataclass(frozen=True)
class ModelFiles:
    """What is known of a model's files without opening them."""

    nbytes: int
    """Of all that hold weights; 0: they are not on this machine, or not to be found by the model's name alone."""
    modified: float
    """When the youngest of them was written, in seconds since 1970."""
    digest: str
    """64 hexadecimal digits of names, sizes and times: what is unchanged has the same."""
    gguf: bool

    @classmethod
    def of(cls, model: str | Path) -> ModelFiles:
        """Of a model by its name."""
        found = _path(str(model))
        stats = [(file, file.stat()) for file in _files(found)] if found is not None else []
        record = [str(found or model), *(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats)]
        return cls(
            sum(stat.st_size for _, stat in stats),
            max((stat.st_mtime for _, stat in stats), default=0.0),
            hashlib.sha256("\n".join(record).encode(errors="surrogateescape")).hexdigest(),
            any(file.suffix == ".gguf" for file, _ in stats),
        )


def _path(model: str) -> Path | None:
    alias = ALIASES.get(model)
    if alias is not None:
        return alias.installed_file()
    path = local_path(model)
    return path if model and exists(path) else None


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for pattern in _WEIGHTS:
            yield from sorted(path.glob(pattern))
        return
    shard = SHARD.fullmatch(path.stem)
    yield from [path] if shard is None else sorted(path.parent.glob(f"{shard['stem']}-*-of-{shard['count']}.gguf"))
