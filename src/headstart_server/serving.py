"""Ways to serve that other packages add to ``headstart serve``: entry points of the group ``headstart.serving``."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from headstart.common.installed import installed_points
from headstart_server.arguments import ServeArguments

GROUP = "headstart.serving"
_log = logging.getLogger(__name__)


class Way(Protocol):
    """Options of the command (``option_groups``), and what serves where they ask for it."""

    @property
    def chosen(self) -> bool:
        """Whether the options ask for it."""
        ...

    def check(self, arguments: ServeArguments) -> None:
        """Refuse what shows at once, options that are given without it among that.

        Raises:
            ConfigError: naming the option.
        """
        ...

    def serve(self, arguments: ServeArguments, keys: tuple[str, ...], host: str, port: int) -> None:
        """Serve until a signal ends it.

        Raises:
            ConfigError: it cannot be.
        """
        ...


def ways() -> dict[str, type[Any]]:
    """Name -> class of a ``Way``, made of its options; a package that is no longer whole adds none."""
    found: dict[str, type[Any]] = {}
    for point in installed_points(GROUP):
        try:
            found[point.name] = point.load()
        except Exception as error:  # whatever such a package can raise
            _log.warning("%s adds nothing to headstart serve: %s; install its package again.", point.value, error)
    return found
