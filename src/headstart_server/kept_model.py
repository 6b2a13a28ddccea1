"""One of several models of a server: whether it is loaded, who wants it, and how it begins and ends."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headstart.entrypoints.outline import Outline
from headstart_server.arguments import ServeArguments
from headstart_server.engine_thread import EngineThread
from headstart_server.memory import give_back_freed
from headstart_server.metrics import Metrics
from headstart_server.model_files import ModelFiles
from headstart_server.models import ListedModel, ModelState, Served, known_name
from headstart_server.settings import ServerSettings


@dataclass(eq=False)
class KeptModel:
    """A model that may be loaded."""

    name: str
    options: ServeArguments
    need: int
    """Bytes that it takes: by its files, until it has been loaded once."""
    metrics: Metrics = field(default_factory=Metrics)
    """They outlast its unloading."""
    served: Served | None = None
    holds: int = 0
    """Requests that are answered with it."""
    used: float = 0.0
    """When the last one began or ended."""
    keep: float = 0.0
    expires: float | None = None
    """When it is unloaded (``time.monotonic``), unless it is asked again."""
    timer: asyncio.TimerHandle | None = None
    """Looks then whether it is so."""
    loading: asyncio.Task[None] | None = None
    waiting: int = 0
    """Requests that wait for it."""
    deserted: bool = False
    """Whether the last of them left."""
    obstacle: str = ""
    """What its loading waits for, a sentence."""
    failure: str = ""
    """Why it could not be loaded at last, a sentence."""
    again: bool = False
    """Whether that may pass."""
    failed: float = -math.inf
    """When that was."""

    def has_adapter(self, name: str) -> bool:
        """Whether an adapter of this name is loaded, or is with the model."""
        if self.served is not None:
            return self.served.adapter(name) is not None
        return known_name(name, self.options.adapters) is not None

    @classmethod
    def of(cls, name: str, options: ServeArguments) -> KeptModel:
        """One that has not been loaded yet."""
        return cls(name, options, ModelFiles.of(str(options.model)).nbytes)

    @property
    def idle(self) -> bool:
        """Whether nobody holds it, or is about to."""
        return not self.holds and not self.waiting

    def listed(self) -> ListedModel:
        """As lists tell it."""
        state = ModelState.UNLOADED
        if self.served is not None:
            state = ModelState.LOADED
        elif self.loading is not None:
            state = ModelState.LOADING
        elif self.failure:
            state = ModelState.FAILED
        expires = None if self.expires is None else time.time() + self.expires - time.monotonic()
        return ListedModel(self.name, self.name, Path(str(self.options.model)), state, self.served, expires)

    def look(self) -> None:
        """Read all of it but its weights.

        Raises:
            HeadstartError: it cannot be loaded.
        """
        options = self.options
        Outline.open(str(options.model), options.revision, options.generation_config, options.reading)

    def begin(self, settings: ServerSettings, begun: float) -> Served:
        """Its engine, at work, for a server of these settings; runs on a thread."""
        options = self.options
        llm = options.load()
        engine = EngineThread(llm, options.max_waiting, options.max_seconds, self.metrics)
        try:
            engine.start()
            engine.rehearse()
        except BaseException:
            engine.close()
            llm.close()
            raise
        settings = replace(settings, served_name=self.name, other_names=())
        return Served.of(llm, engine, settings, time.monotonic() - begun)


def end(last: list[Served]) -> None:
    """End a model that nobody else holds; what it took is given back before anybody asks for room."""
    served = last.pop()
    served.close()
    served.llm.close()
    del served
    # An engine and its thread hold on to each other in circles.
    gc.collect()
    give_back_freed()


def longest_idle(models: Sequence[KeptModel]) -> KeptModel | None:
    """The one that was asked longest ago of those that are idle."""
    return min((each for each in models if each.idle), key=lambda each: each.used, default=None)
