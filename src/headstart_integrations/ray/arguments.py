"""What an application on Ray is told, beside what every server is told. Importing this imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any

from headstart.common.options import Option, Options, declares
from headstart.errors import ConfigError
from headstart_server.arguments import ServeArguments

RAY = "Replicas on Ray"


@declares
class Replicas(Options):
    """How many engines answer, and with what.

    Raises:
        ConfigError: as ``EngineOptions``.
    """

    replicas: Annotated[
        int | None,
        Option(
            "How many replicas of the engine. Left out: 1, or as many as the load asks for between the next two.",
            RAY,
            metavar="N",
            least=1,
        ),
    ] = None
    min_replicas: Annotated[
        int | None, Option("Fewest replicas, if their number follows the load.", RAY, metavar="N", least=0)
    ] = None
    max_replicas: Annotated[int | None, Option("Most replicas, likewise.", RAY, metavar="N", least=1)] = None
    target_ongoing_requests: Annotated[
        float | None,
        Option("Requests of a replica that autoscaling aims at. Left out: as many as decode together.", RAY, above=0),
    ] = None
    upscale_seconds: Annotated[
        float | None,
        Option(
            "How long the load must ask for more replicas before they are started. Left out: 30.",
            RAY,
            metavar="S",
            least=0,
        ),
    ] = None
    downscale_seconds: Annotated[
        float | None,
        Option("How long it must ask for fewer before some are ended. Left out: 600.", RAY, metavar="S", least=0),
    ] = None
    cpus_per_replica: Annotated[
        float,
        Option("Cores that Ray sets aside for a replica, which computes on that many threads.", RAY, above=0),
    ] = 1.0
    gpus_per_replica: Annotated[float, Option("Accelerators of each replica (with device cuda).", RAY, least=0)] = 0.0
    gateways: Annotated[
        int, Option("Processes that read requests and hand them to replicas.", RAY, metavar="N", least=1)
    ] = 1
    affinity_slack: Annotated[
        int,
        Option(
            "Requests that a chat's own replica may be ahead of 1.25 times the mean, before the chat goes to another.",
            RAY,
            metavar="N",
            least=0,
        ),
    ] = 4


@declares
class RayArguments(Replicas, ServeArguments):
    """Fields as in a Serve config file's ``args``, or as ``name=value`` after ``serve run``.

    Raises:
        ConfigError: as ``EngineOptions``.
    """

    @property
    def scales(self) -> bool:
        """Whether the number of replicas follows the load."""
        return self.min_replicas is not None or self.max_replicas is not None

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most replicas."""
        if not self.scales:
            return (self.replicas or 1,) * 2
        fewest = 1 if self.min_replicas is None else self.min_replicas
        return fewest, max(fewest, 1) if self.max_replicas is None else self.max_replicas

    @property
    def threads(self) -> int:
        return max(int(self.cpus_per_replica), 1)

    def check(self) -> tuple[str | type[Any], dict[str, object]]:
        """As ``EngineOptions.check``."""
        if self.scales and self.replicas is not None:
            raise ConfigError("replicas is a fixed number; leave out min_replicas and max_replicas, or it.")
        fewest, most = self.bounds
        if fewest > most:
            raise ConfigError(f"min_replicas is {fewest}, more than max_replicas, {most}.")
        if self.gpus_per_replica and self.device == "cpu":
            raise ConfigError(f"gpus_per_replica is {self.gpus_per_replica:g}, but device is cpu; give device=cuda.")
        return super().check()
