"""``headstart serve --ray``: replicas on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.server.arguments import ServeArguments

RAY = "Replicas on Ray"


@dataclass(frozen=True)
class Scaling:
    """How many engines answer: options of the command (``option_groups``)."""

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
    replicas: Annotated[
        int | None, typer.Option(min=1, help="How many replicas of the engine; 1 if left out.", rich_help_panel=RAY)
    ] = None
    min_replicas: Annotated[
        int | None, typer.Option(min=0, help="Fewest replicas, if their number follows the load.", rich_help_panel=RAY)
    ] = None
    max_replicas: Annotated[int | None, typer.Option(min=1, help="Most replicas, likewise.", rich_help_panel=RAY)] = (
        None
    )
    cpus_per_replica: Annotated[
        float | None,
        typer.Option(min=0.1, help="Cores, and threads, of each replica; 1 if left out.", rich_help_panel=RAY),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(min=0.0, help="Accelerators of each replica (with --device cuda).", rich_help_panel=RAY),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """What was given of the application's arguments."""
        names = ("replicas", "min_replicas", "max_replicas", "cpus_per_replica", "gpus_per_replica")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def check(self) -> None:
        """Refuse what shows at once.

        Raises:
            ConfigError: naming it.
        """
        if not self.ray:
            if self.given or self.ray_address is not None:
                name = next(iter(self.given), "ray_address").replace("_", "-")
                raise ConfigError(f"--{name} is of replicas on Ray; give --ray as well.")
            return
        from headstart.integrations.ray import require_ray

        require_ray()

    def serve(self, served: ServeArguments, keys: tuple[str, ...], host: str, port: int, drain_seconds: float) -> None:
        """Serve until a signal ends it, then let requests end.

        Raises:
            ConfigError: the replicas do not fit, or do not start.
        """
        from headstart.integrations.ray.arguments import RayArguments
        from headstart.integrations.ray.guarding import guard_cluster
        from headstart.outline import Outline

        arguments = RayArguments(**served.model_dump(), **self.given, drain_seconds=drain_seconds)
        arguments.check()
        address = self.ray_address or os.environ.get("RAY_ADDRESS")
        if address is None:
            # On this machine the model is looked at before anything is started; Ray would try a bad one three times.
            Outline.open(arguments.model, arguments.revision, arguments.generation_config, arguments.reading)
            guard_cluster()
        # Ray reads the environment when it is imported.
        from headstart.integrations.ray.cluster import Need, connected, running

        ended = threading.Event()

        def end(*_: object) -> None:
            if ended.is_set():
                raise KeyboardInterrupt
            ended.set()

        with connected(address, Need.of(arguments)):
            # Ray puts a handler of its own in place when it connects.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, end)
            with running(arguments, keys, host, port):
                where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
                typer.echo(f"Serving {arguments.model} from replicas on Ray.\nOpenAI API: {where}/v1", err=True)
                ended.wait()
                typer.echo("Ending: requests in progress may finish.", err=True)
