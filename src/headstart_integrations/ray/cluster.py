"""A Ray cluster to serve on: one that runs already, or one of this machine alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from headstart.errors import ConfigError
from headstart_integrations.ray import application
from headstart_integrations.ray.arguments import RayArguments

NAME = "headstart"
"""Of the Serve application."""
STORE_BYTES = 100 << 20
"""Ray's store of objects on this machine: what goes between gateways and replicas is small."""


@dataclass(frozen=True)
class Need:
    """What must fit into a cluster."""

    actors: int
    cpus: float
    """Cores of each."""
    gpus: float = 0.0

    @classmethod
    def of(cls, arguments: RayArguments) -> Need:
        """Of an application's replicas."""
        fewest, _ = arguments.bounds
        return cls(max(fewest, 1), arguments.cpus_per_replica, arguments.gpus_per_replica)


@contextmanager
def connected(address: str | None, need: Need, **settings: Any) -> Iterator[None]:
    """A connection to the cluster at ``address``; None: a cluster of this machine without a dashboard, which ends with
    the context (``guarding.guard_cluster`` first).

    Args:
        address: as ``ray.init``.
        need: what shall fit.
        settings: for ``ray.init``, of a cluster of this machine.

    Raises:
        ConfigError: there is no such cluster, it does not start, or this machine has not what is needed.
    """
    if address is None:
        settings = {"object_store_memory": STORE_BYTES, "include_dashboard": False, **settings}
    else:
        settings = {"address": address}
    try:
        ray.init(logging_level=logging.WARNING, **settings)
    except Exception as error:  # Ray raises errors of no kind of its own
        here = "a Ray cluster of this machine did not start"
        what = here if address is None else f"no Ray cluster answers at {address}"
        raise ConfigError(f"{what}: {first_line(error)}") from error
    try:
        if address is None:
            _require_room(need)
        yield
    finally:
        ray.shutdown()


@contextmanager
def running(arguments: RayArguments, keys: tuple[str, ...], host: str, port: int) -> Iterator[None]:
    """The application, served over HTTP while the context lasts; at its end requests in progress may finish.

    Raises:
        ConfigError: the replicas did not start.
    """
    try:
        try:
            serve.start(http_options={"host": host, "port": port})
            serve.run(application(arguments, keys), name=NAME, route_prefix="/")
        except (RuntimeError, RayError) as error:
            raise ConfigError(f"the replicas did not start: {first_line(error)}") from error
        yield
        # Serve's own end takes the proxies away at once, and with them every connection.
        serve.delete(NAME)
    finally:
        serve.shutdown()


def _require_room(need: Need) -> None:
    has = ray.cluster_resources()
    for what, each, name in (("cores", need.cpus, "CPU"), ("accelerators", need.gpus, "GPU")):
        if need.actors * each > has.get(name, 0):
            raise ConfigError(
                f"{need.actors} engines of {each:g} {what} do not fit: this machine has {has.get(name, 0):g}."
            )


def first_line(error: Exception) -> str:
    """What an error of Ray says, without the traces behind it."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
