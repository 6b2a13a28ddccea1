"""Files that are kept for later, and may be deleted, or broken, at any time: written whole, and bounded together."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1 << 12
"""That a file takes at least."""
_log = logging.getLogger(__name__)


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to be written for its owner alone, put in place at once when it is whole; of one that fails nothing is
    left. Its folder is made, for the owner, too.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def make_room(paths: Iterable[Path], most_bytes: int) -> int:
    """Delete the files that were used longest ago, by their times, until the others take so many bytes at most; what is
    left of them, in bytes."""
    held = []
    for path in paths:
        with suppress(OSError):  # it has just been deleted
            found = path.stat()
            held.append((found.st_mtime_ns, max(found.st_size, BLOCK_BYTES), path))
    total = sum(size for _, size, _ in held)
    for _, size, path in sorted(held):
        if total <= most_bytes:
            break
        with suppress(OSError):
            path.unlink(missing_ok=True)
            total -= size
    return total


@cache
def tell(sentence: str) -> None:
    """Log a warning, once."""
    _log.warning("%s", sentence)
