"""Whether a file of a cache may be loaded: nobody else can have written it, and it is whole."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import stat
from pathlib import Path

_ELF_64 = b"\x7fELF\x02\x01"
"""How libraries of 64-bit little-endian systems begin."""


def why_distrusted(path: Path) -> str | None:
    """Why others than this user and root may have written a file or folder, or put it there; None if they cannot.

    Looks at it and at every folder above it. Folders like /tmp, where everybody may write but not touch what belongs to
    others, are fine above it.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    whole = path.resolve(strict=True)
    for each in (whole, *whole.parents):
        found = each.stat()
        if found.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to another user"
        if each != whole and found.st_mode & stat.S_ISVTX:
            continue
        by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
        if by_group or found.st_mode & stat.S_IWOTH:
            return f"other users may write {each}"
    return None


def keep_digest(path: Path, named: Path) -> None:
    """Write down what the file ``path`` holds, which is about to be moved to ``named``; who reads it reads this, too.

    Raises:
        OSError: it cannot be written.
    """
    digest = _digest_file(named)
    digest.write_text(_digest(path))
    digest.chmod(stat.S_IMODE(path.stat().st_mode) & 0o666)


def is_whole(path: Path) -> bool:
    """Whether a file is there and holds what was written down of it."""
    try:
        return _digest_file(path).read_bytes() == _digest(path).encode()
    except OSError:
        return False


def is_cut_short(path: Path) -> bool:
    """Whether a library ends before its last table, which loading it would die of.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(_ELF_64):
        return False  # what is no library is refused with an error when it is loaded
    table, entry, count = (int.from_bytes(header[at : at + size], "little") for at, size in ((40, 8), (58, 2), (60, 2)))
    return path.stat().st_size < table + entry * count


def _is_own_group(group: int) -> bool:
    """Whether it is the group that systems make for each user, with nobody else in it."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
