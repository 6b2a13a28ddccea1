"""``headstart train --ray``: the text is written by engines on this machine or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart_train.text.gathering import Writers

RAY = "Text on Ray"


@dataclass(frozen=True)
class RayWriting:
    """Who writes the text: options of the command (``option_groups``)."""

    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Write the text with engines on Ray (extra `ray`): on this machine, or on the cluster of "
            "--ray-address. The text is the same as without.",
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
    writers: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many engines write. Left out: as many as the cluster has room for.", rich_help_panel=RAY
        ),
    ] = None
    cpus_per_writer: Annotated[
        float | None,
        typer.Option(min=0.1, help="Cores, and threads, of each engine; 1 if left out.", rich_help_panel=RAY),
    ] = None

    def check(self) -> None:
        """Refuse what shows at once.

        Raises:
            ConfigError: naming it.
        """
        if self.ray:
            from headstart_integrations.ray import require_ray

            require_ray("writing on Ray", "pyarrow", "pandas")
            return
        for name in ("ray_address", "writers", "cpus_per_writer"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} is of text on Ray; give --ray as well.")

    @contextmanager
    def connected(self) -> Iterator[Writers | None]:
        """The cluster's engines, in the process that has the text written; None: it writes itself.

        Raises:
            ConfigError: there is no such cluster, or too little room.
        """
        if not self.ray or os.environ.get("RANK", "0") != "0":
            yield None
            return
        from headstart_integrations.ray.guarding import guard_cluster

        address = self.ray_address or os.environ.get("RAY_ADDRESS")
        if address is None:
            guard_cluster()
        # Ray reads the environment when it is imported.
        from headstart_train.text.on_ray import RayWriters

        writers = RayWriters(address, self.writers, self.cpus_per_writer or 1.0)
        try:
            yield writers
        finally:
            writers.close()
