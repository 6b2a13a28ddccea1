"""``headstart serve --ray``: replicas on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import Annotated

import typer

from headstart.common.options import declared
from headstart.errors import ConfigError
from headstart_integrations.ray.arguments import RAY, RayArguments, Replicas
from headstart_server.arguments import ServeArguments


@dataclass(frozen=True, kw_only=True)
class OnRay(Replicas):
    """Options of the command (``headstart_server.serving.Way``)."""

    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Serve from replicas on Ray (extra `ray`): on this machine, or on the cluster of --ray-address.",
            rich_help_panel=RAY,
        ),
    ] = False
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="A running cluster's address, or auto. Left out: RAY_ADDRESS, or a cluster of this machine alone.",
            rich_help_panel=RAY,
            metavar="ADDRESS",
        ),
    ] = None

    @property
    def chosen(self) -> bool:
        return self.ray

    def check(self, arguments: ServeArguments) -> None:
        """As ``Way``: what is of replicas needs ``--ray``, and that needs Ray."""
        if not self.ray:
            given = [each.name for each in declared(Replicas) if getattr(self, each.name) != each.default]
            if given or self.ray_address is not None:
                name = [*given, "ray_address"][0].replace("_", "-")
                raise ConfigError(f"--{name} is of replicas on Ray; give --ray as well.")
            return
        from headstart_integrations.ray import require_ray

        require_ray()
        self._told(arguments).check()

    def serve(self, arguments: ServeArguments, keys: tuple[str, ...], host: str, port: int) -> None:
        """Serve until a signal ends it, then let requests end.

        Raises:
            ConfigError: the replicas do not fit, or do not start.
        """
        from headstart.entrypoints.outline import Outline
        from headstart_integrations.ray.guarding import guard_cluster

        told = self._told(arguments)
        address = self.ray_address or os.environ.get("RAY_ADDRESS")
        if address is None:
            # On this machine the model is looked at before anything is started; Ray would try a bad one three times.
            Outline.open(str(arguments.model), arguments.revision, arguments.generation_config, arguments.reading)
            guard_cluster()
        # Ray reads the environment when it is imported.
        from headstart_integrations.ray.cluster import Need, connected, running

        ended = threading.Event()

        def end(*_: object) -> None:
            if ended.is_set():
                raise KeyboardInterrupt
            ended.set()

        with connected(address, Need.of(told)):
            # Ray puts a handler of its own in place when it connects.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, end)
            with running(told, keys, host, port):
                where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
                typer.echo(f"Serving {arguments.model} from replicas on Ray.\nOpenAI API: {where}/v1", err=True)
                ended.wait()
                typer.echo("Ending: requests in progress may finish.", err=True)

    def _told(self, arguments: ServeArguments) -> RayArguments:
        return RayArguments(**arguments.given(), **self.given(Replicas))
