"""Headstart on Ray Serve: replicas of the engine behind gateways that send each chat back to the replica that knows it.

    serve run headstart_integrations.ray:build_app model=smollm2 replicas=2

A gateway (``gateway.py``) reads a request, makes its routing key (``routing_key.py``) and hands it to a replica
(``replica.py``), which answers it with the application of ``headstart serve``. Which replica, says ``router.py``.

Beside that, engines on a cluster write the text of a training (``writing.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headstart.errors import ConfigError
from headstart_integrations.ray.arguments import RayArguments

if TYPE_CHECKING:
    from ray.serve import Application


def build_app(arguments: Mapping[str, Any] | RayArguments) -> Application:
    """The application as ``serve run``, ``serve build`` and ``serve deploy`` take it.

    API keys come from ``api_key_file`` or ``HEADSTART_API_KEYS`` where the application is built.

    Args:
        arguments: fields of ``RayArguments``; a command line gives them as texts.

    Raises:
        ConfigError, CheckpointError: one is unknown, has no such value or does not go with another; or Ray is not
            installed.
    """
    read = arguments if isinstance(arguments, RayArguments) else RayArguments.read(arguments)
    keys = read.keys()
    read.check()
    return application(read, keys)


def application(arguments: RayArguments, keys: tuple[str, ...]) -> Application:
    """The same, with keys that were read already and arguments that were checked."""
    try:
        from headstart_integrations.ray.deployments import deploy
    except ImportError as error:
        raise _missing(error.name) from error
    return deploy(arguments, keys)


def require_ray(doing: str = "serving on Ray", *more: str) -> None:
    """Look whether Ray is there, and ``more`` packages that it needs for this, without importing it.

    Raises:
        ConfigError: it is not.
    """
    for package in ("ray", *more):
        if find_spec(package) is None:
            raise _missing(package, doing)


def _missing(package: str | None, doing: str = "serving on Ray") -> ConfigError:
    return ConfigError(f"{doing} needs {package}; install headstart with its extras: headstart[server,ray].")
