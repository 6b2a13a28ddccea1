"""What installed packages bring: their entry points."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MethodType
from typing import Any

LIBRARY = "headstart.library"
"""Entry points of this group are further names that ``headstart`` has ("Transcript"), and methods of its front doors
("LLM.transcribe")."""


def installed_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, of the packages on ``sys.path`` as it is now.

    They are read once for each path: with hundreds of packages that takes a tenth of a second, and servers ask often.
    """
    return _points_on(tuple(sys.path), group)


def of_library(name: str) -> Any:
    """What a package adds to the library by this name.

    Raises:
        AttributeError: none does.
    """
    for point in installed_points(LIBRARY):
        if point.name == name:
            return point.load()
    raise AttributeError(f"no installed package adds {name} to headstart; install Headstart again.")


class AddedMethod:
    """A method that a package adds to a class: the entry point "Class.method"."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> Any:
        function = of_library(self._name)
        return function if instance is None else MethodType(function, instance)


@cache
def _points_on(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
