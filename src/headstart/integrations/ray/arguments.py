"""What an application on Ray is told, beside what every server is told."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from headstart.errors import ConfigError
from headstart.server.arguments import ServeArguments


class RayArguments(ServeArguments):
    """Fields as in a Serve config file's ``args``, or as ``name=value`` after ``serve run``."""

    api_key_file: Path | None = None
    """A file of API keys, one per line, read where the application is built; None: ``HEADSTART_API_KEYS``."""
    replicas: int | None = Field(default=None, ge=1)
    """A fixed number of replicas; None: 1, or as many as the load asks for between the next two."""
    min_replicas: int | None = Field(default=None, ge=0)
    max_replicas: int | None = Field(default=None, ge=1)
    target_ongoing_requests: float | None = Field(default=None, gt=0)
    """Requests per replica that autoscaling aims at; None: ``batch_size``."""
    upscale_seconds: float | None = Field(default=None, ge=0)
    """How long the load must ask for more replicas before they are started; None: Serve's own, 30."""
    downscale_seconds: float | None = Field(default=None, ge=0)
    """How long it must ask for fewer before some are ended; None: Serve's own, 600."""
    cpus_per_replica: float = Field(default=1.0, gt=0)
    """Cores that Ray sets aside for a replica; a replica computes on that many threads."""
    gpus_per_replica: float = Field(default=0.0, ge=0)
    gateways: int = Field(default=1, ge=1)
    """Processes that read requests and hand them to replicas."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Longest time from the end of a replica's service to the end of its requests."""
    affinity_slack: int = Field(default=4, ge=0)
    """Requests that a chat's own replica may be ahead of 1.25 times the mean, before the chat goes to another."""

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

    def check(self) -> None:
        """As ``ServeArguments.check``."""
        if self.scales and self.replicas is not None:
            raise ConfigError("replicas is a fixed number; leave out min_replicas and max_replicas, or it.")
        fewest, most = self.bounds
        if fewest > most:
            raise ConfigError(f"min_replicas is {fewest}, more than max_replicas, {most}.")
        if self.gpus_per_replica and self.device == "cpu":
            raise ConfigError(f"gpus_per_replica is {self.gpus_per_replica:g}, but device is cpu; give device=cuda.")
        super().check()
