"""What installed packages bring: their entry points."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points


def installed_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, of the packages on ``sys.path`` as it is now.

    They are read once for each path: with hundreds of packages that takes a tenth of a second, and servers ask often.
    """
    return _points_on(tuple(sys.path), group)


@cache
def _points_on(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
