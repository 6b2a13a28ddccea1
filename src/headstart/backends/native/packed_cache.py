"""Packed weights on disk, so that a model that was packed once need not be packed at every start.

Files lie in the folder ``packed`` beside the compiled libraries, each named by a key for everything that its bytes
depend on. They may be deleted at any time; what is damaged is noticed and packed anew. The environment variable
HEADSTART_PACKED_CACHE bounds their size together ("20GB"), or switches them off ("0").
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headstart.backends.native.loader import cache_directory
from headstart.backends.native.trust import why_distrusted
from headstart.common import kept_files
from headstart.errors import ConfigError

logger = logging.getLogger(__name__)

VARIABLE = "HEADSTART_PACKED_CACHE"
_SHARE = 4
"""One part in so many of what the disk has free is used, where nobody says how much."""
_START = 4096
"""Where the library's part of a file begins; before it stands the key."""
_ENDING = ".packed"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

Transfer = Callable[[int, int], str | None]
"""An open file, and where to begin in it -> None, or what went wrong."""


@dataclass(frozen=True)
class PackedCache:
    """A folder of packed weights; ``limit`` bytes at most."""

    directory: Path
    limit: int

    def load(self, key: str, restore: Transfer) -> bool:
        """Whether the weights of ``key`` were there and whole; where not, what ``restore`` has filled is of no use."""
        path = self._path(key)
        try:
            with path.open("rb", buffering=0) as file:
                problem = why_distrusted(path)
                if problem is None and file.read(len(key)) != key.encode():
                    problem = "the file is of another model"
                problem = problem or restore(file.fileno(), _START)
            if problem is None:
                os.utime(path)  # the oldest go first
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            problem = error.strerror
        logger.info("packed weights in %s are not used (%s); packing anew", path, problem)
        with suppress(OSError):
            path.unlink()
        return False

    def store(self, key: str, size: int, save: Transfer) -> None:
        """Keep about ``size`` bytes of weights under ``key``, unless there is no room for them."""
        try:
            if not self._make_room(size):
                return
            with kept_files.written(self._path(key)) as file:
                file.write(key.encode())
                file.flush()
                if (problem := save(file.fileno(), _START)) is not None:
                    raise OSError(0, problem)
        except OSError as error:
            logger.info("packed weights are not kept in %s: %s", self.directory, error.strerror)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_ENDING}"

    def _make_room(self, size: int) -> bool:
        """Delete the files that were used longest ago until ``size`` more bytes fit."""
        if size > self.limit:
            return False
        held = (*self.directory.glob(f"*{_ENDING}"), *self.directory.glob("*.part"))
        return kept_files.make_room(held, self.limit - size) + size <= self.limit


def packed_cache() -> PackedCache | None:
    """The cache of this user; None where it is switched off, cannot be written, or others may write there, too.

    Raises:
        ConfigError: the environment variable is no size.
    """
    wanted = os.environ.get(VARIABLE, "").strip()
    if wanted == "0":
        return None
    limit = _size(wanted) if wanted else None
    try:
        directory = cache_directory().resolve() / "packed"  # not among temporary files, which may be memory
        directory.mkdir(parents=True, exist_ok=True)
        if (reason := why_distrusted(directory)) is not None:
            logger.info("packed weights are not kept: %s", reason)
            return None
        if limit is None:
            held = sum(path.stat().st_size for path in directory.glob(f"*{_ENDING}"))
            limit = (shutil.disk_usage(directory).free + held) // _SHARE
    except OSError as error:
        logger.info("packed weights are not kept: %s", error)
        return None
    return PackedCache(directory, limit)


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", text.upper())
    unit = None if found is None else found[2] if found[2].endswith("B") or not found[2] else f"{found[2]}B"
    if found is None or unit is None:
        raise ConfigError(f"{VARIABLE} is {text!r}; give a size such as 20GB, or 0 for no packed weights on disk.")
    return int(float(found[1]) * _UNITS[unit])
