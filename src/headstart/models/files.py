"""Small helpers that every kind of model file shares."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.errors import CheckpointError

if TYPE_CHECKING:
    pass

_MAX_JSON_BYTES = 1 << 27
_SAMPLE_BYTES = 4096
_SETTLED_SECONDS = 2.0
"""The clock of files may stand still for so long: what was changed just now may be changed again unnoticed."""


def local_path(name: str | Path) -> Path:
    """A path as users write it: ``~`` is a home directory, where there is such a user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def exists(path: Path) -> bool:
    """Whether something of this name is there.

    Raises:
        CheckpointError: nothing can be called so, or it must not be looked at.
    """
    try:
        return path.exists()
    except OSError as error:
        raise CheckpointError(f"{str(path)!r:.200} cannot be looked up ({error.strerror}); check the name.") from error


def require_file(path: Path) -> os.stat_result:
    """What the system says of a file, which may be followed to by a link.

    Raises:
        CheckpointError: it is missing or not to be read, or a pipe, a socket, a device or a directory, which would hang
            or never end.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); check that it is there.") from error
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path} is no regular file; name or fetch the file itself.")
    require_readable(path)
    return found


def may_be_read(path: Path) -> bool:
    """Whether a file may be read, or a directory looked into."""
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def require_readable(path: Path) -> None:
    """Refuse what is there and may not be read.

    Raises:
        CheckpointError: naming it.
    """
    if exists(path) and not may_be_read(path):
        raise CheckpointError(f"{path} cannot be read ({os.strerror(errno.EACCES)}); ask for the right to read it.")


def read_text(path: Path) -> str:
    """A UTF-8 file as text.

    Raises:
        CheckpointError: it is missing, unreadable, no regular file, absurdly large or not UTF-8.
    """
    size = require_file(path).st_size
    if size > _MAX_JSON_BYTES:
        raise CheckpointError(f"{path} has {size} bytes, above the limit of {_MAX_JSON_BYTES}; check the file.")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); check that it is there.") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text; fetch it again.") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object.

    Raises:
        CheckpointError: as ``read_text``, or it is not one JSON object.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, not an object; fetch it again.")
    return value


@dataclass(frozen=True)
class FileStamp:
    """What the system says of a file when it is opened; no change of its bytes leaves all of it as it was."""

    path: Path
    size: int
    changed: tuple[int, int, int]
    """Times of the bytes' and of any change, in nanoseconds; the file's number."""
    settled: bool
    """Whether the last change was long enough ago."""

    @classmethod
    def of(cls, path: Path, descriptor: int | None = None) -> FileStamp:
        """Of an open file, or of what is at ``path`` now.

        Raises:
            OSError: there is nothing.
        """
        found = os.stat(path) if descriptor is None else os.fstat(descriptor)
        changed = (found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        return cls(path, found.st_size, changed, abs(time.time() - found.st_ctime) > _SETTLED_SECONDS)


@dataclass(frozen=True)
class WeightsIdentity:
    """Which weights these are, to the last bit, without reading all of them."""

    digest: str
    """See ``WeightsDigest``."""
    stamps: tuple[FileStamp, ...]

    def __str__(self) -> str:
        return f"{self.digest} {[(stamp.size, stamp.changed) for stamp in self.stamps]}"

    def holds(self) -> bool:
        """Whether the files are still those that were opened, and are sure to be told from changed ones."""
        try:
            now = [FileStamp.of(stamp.path) for stamp in self.stamps]
        except OSError:
            return False
        return all(
            stamp.settled and (stamp.size, stamp.changed) == (found.size, found.changed)
            for stamp, found in zip(self.stamps, now, strict=True)
        )


class WeightsDigest:
    """SHA-256 over every tensor's name, stored type, shape, and 4 KiB each from its start, middle and end.

    It tells models apart whatever the sharding or file metadata, in milliseconds; it is no proof that a file
    is undamaged. Add the tensors in sorted order of their names.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, stored_type: str, shape: Sequence[int], data: memoryview) -> None:
        """Take one tensor in; ``data`` is its stored bytes."""
        self._hash.update(json.dumps([name, stored_type, list(shape)]).encode())
        middle = max(0, len(data) // 2 - _SAMPLE_BYTES // 2)
        for start in (0, middle, max(0, len(data) - _SAMPLE_BYTES)):
            self._hash.update(data[start : start + _SAMPLE_BYTES])

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
