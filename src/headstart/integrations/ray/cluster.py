"""A Ray cluster to serve on: one that runs already, or one of this machine alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve

from headstart.errors import ConfigError
from headstart.integrations.ray import application
from headstart.integrations.ray.arguments import RayArguments

NAME = "headstart"
"""Of the Serve application."""
STORE_BYTES = 100 << 20
"""Ray's store of objects on this machine: what goes between gateways and replicas is small."""


@contextmanager
def connected(address: str | None, arguments: RayArguments, **settings: Any) -> Iterator[None]:
    """A connection to the cluster at ``address``; None: a cluster of this machine without a dashboard, which ends with
    the context (``guarding.guard_cluster`` first).

    Args:
        address: as ``ray.init``.
        arguments: what shall fit.
        settings: for ``ray.init``, of a cluster of this machine.

    Raises:
        ConfigError: there is no such cluster, or the replicas do not fit on this machine.
    """
    if address is None:
        settings = {"object_store_memory": STORE_BYTES, "include_dashboard": False, **settings}
    else:
        settings = {"address": address}
    try:
        ray.init(logging_level=logging.WARNING, **settings)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {_first_line(error)}") from error
    try:
        if address is None:
            _require_room(arguments)
        yield
    finally:
        ray.shutdown()


@contextmanager
def running(arguments: RayArguments, keys: tuple[str, ...], host: str, port: int) -> Iterator[None]:
    """The application, served over HTTP while the context lasts; at its end requests in progress may finish.

    Raises:
        ConfigError: the replicas did not start.
    """
    serve.start(http_options={"host": host, "port": port})
    try:
        try:
            serve.run(application(arguments, keys), name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise ConfigError(f"the replicas did not start: {_first_line(error)}") from error
        yield
        # Serve's own end takes the proxies away at once, and with them every connection.
        serve.delete(NAME)
    finally:
        serve.shutdown()


def _require_room(arguments: RayArguments) -> None:
    has = ray.cluster_resources()
    fewest, _ = arguments.bounds
    for what, each, name in (
        ("cores", arguments.cpus_per_replica, "CPU"),
        ("accelerators", arguments.gpus_per_replica, "GPU"),
    ):
        if max(fewest, 1) * each > has.get(name, 0):
            raise ConfigError(
                f"{max(fewest, 1)} replicas of {each:g} {what} do not fit: this machine has {has.get(name, 0):g}."
            )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
