"""The models of a server: which there are by which names, and who holds one while it answers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError, HeadstartError, RequestError
from headstart.passes.adapters import Adapter
from headstart_server.engine_thread import EngineThread
from headstart_server.generation import Generator
from headstart_server.settings import ServerSettings

_HOLDS = "headstart.holds"
"""The key in a request's scope of what is let go once its answer has been sent."""
_LATEST = ":latest"
"""The tag of names without one, as Ollama has it: with and without are one name."""


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


class NotLoadedError(HeadstartError):
    """A model cannot be loaded, or not yet; ``again``: asking once more may help."""

    def __init__(self, message: str, again: bool) -> None:
        super().__init__(message)
        self.again = again


class ModelState(StrEnum):
    """What has become of a model; llama.cpp's words."""

    LOADED = "loaded"
    LOADING = "loading"
    UNLOADED = "unloaded"
    FAILED = "failed"


@dataclass(frozen=True)
class Served:
    """A loaded model, and what answers requests with it."""

    llm: LLM
    engine: EngineThread
    generator: Generator
    settings: ServerSettings
    """The server's, with the model's names."""
    loading_seconds: float = 0.0

    @classmethod
    def of(cls, llm: LLM, engine: EngineThread, settings: ServerSettings, loading_seconds: float = 0.0) -> Served:
        """With a generator of its own."""
        return cls(llm, engine, Generator(engine, settings), settings, loading_seconds)

    def named(self, name: str | None) -> Served:
        """What answers to a name: the model, or the model with the adapter that is called so."""
        if name is None or (found := self.adapter(name)) is None:
            return self
        settings = replace(self.settings, served_name=found.name)
        return replace(self, llm=self.llm.adapted(found), settings=settings)

    def adapter(self, name: str) -> Adapter | None:
        """The loaded adapter of a name that none of the model's own is."""
        found = dict(self.llm.adapters)
        return None if (known := known_name(name, found)) is None else found[known]

    def stop(self) -> None:
        """Cut off the requests in progress."""
        self.engine.stop()

    def close(self) -> None:
        """Let the requests in progress end; takes no more."""
        self.engine.close()
        self.generator.close()


@dataclass(frozen=True)
class ListedModel:
    """A model as lists tell it."""

    name: str
    root: str
    """The first of its names."""
    model: str | Path
    """What it is loaded from."""
    state: ModelState
    served: Served | None = None
    expires: float | None = None
    """When it is unloaded, unless it is asked again (seconds since 1970); None: it stays, or is not loaded."""
    parent: str | None = None
    """Of an adapter: its model's name."""

    def adapted(self, adapter: Adapter) -> ListedModel:
        """An adapter of the model."""
        return replace(self, name=adapter.name, root=adapter.path, parent=self.root)

    def with_adapters(self) -> Iterator[ListedModel]:
        """The model, and its adapters."""
        yield self
        for each in [] if self.served is None else list(self.served.llm.adapters.values()):
            yield self.adapted(each)


class Models(ABC):
    """What a server serves. Its methods are called on the event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        """The server's."""
        self.started = int(time.time())
        self.adapting = asyncio.Lock()
        """Held while an adapter is loaded or unloaded: one at a time, so that no thread but one waits for files."""

    @property
    def only(self) -> Served | None:
        """The one model there is; None: there may be others."""
        return None

    @abstractmethod
    async def held(self, name: str | None, request: Request, keep_alive: float | None = None) -> Served:
        """A model, loaded, which stays until the answer to ``request`` has been sent; None: whichever is nearest.

        Args:
            keep_alive: seconds that it is to stay afterwards; infinite: for good; None: as the server has it.

        Raises:
            UnknownModelError: there is none of this name.
            NotLoadedError: it cannot be loaded, or not within the server's time.
            BusyError, ClosedError: too many wait for it, or the server ends.
        """

    @abstractmethod
    def known(self, name: str | None) -> ListedModel:
        """A model by any of its names; None: whichever is nearest.

        Raises:
            UnknownModelError: there is none.
        """

    @abstractmethod
    def listed(self) -> Sequence[ListedModel]:
        """All models, once for each of their names."""

    @property
    @abstractmethod
    def serving(self) -> bool:
        """Whether requests are taken."""

    @property
    def loaded(self) -> list[Served]:
        """The models that are loaded."""
        found = (each.served for each in self.listed())
        return list({id(served): served for served in found if served is not None}.values())

    async def start(self) -> None:
        """Begin to serve."""
        await asyncio.sleep(0)

    def stop(self) -> None:
        """Cut off all requests in progress; runs on a thread."""
        for served in self.loaded:
            served.stop()

    async def close(self) -> None:
        """Let the requests in progress end."""
        for served in self.loaded:
            await asyncio.to_thread(served.close)


class OneModel(Models):
    """A model that is there from the start to the end."""

    def __init__(self, served: Served) -> None:
        super().__init__(served.settings)
        self._served = served
        if taken := [name for name in served.llm.adapters if known_name(name, served.settings.names)]:
            raise ConfigError(f"lora names an adapter {taken[0]!r:.80}, as the model is named; take another name.")

    @property
    def only(self) -> Served:
        """See ``Models``."""
        return self._served

    async def held(self, name: str | None, request: Request, keep_alive: float | None = None) -> Served:
        """See ``Models``."""
        self.known(name)
        return self._served.named(name)

    def known(self, name: str | None) -> ListedModel:
        """See ``Models``."""
        names = self.settings.names
        if name is not None and (adapter := self._served.adapter(name)) is not None:
            return self._listed(names[0]).adapted(adapter)
        known = names[0] if name is None else known_name(name, names)
        if known is None:
            adapters = self._served.llm.adapters
            raise UnknownModelError(
                f"model {name!r} is not served here; it is {' or '.join(map(repr, [*names, *adapters]))}.", "model"
            )
        return self._listed(known)

    def listed(self) -> Sequence[ListedModel]:
        """See ``Models``."""
        first, *others = [self._listed(name) for name in self.settings.names]
        return [*first.with_adapters(), *others]

    @property
    def serving(self) -> bool:
        """See ``Models``."""
        return self._served.engine.alive and not self._served.engine.closing

    async def start(self) -> None:
        """See ``Models``; structured outputs are made ready before the first request."""
        if not self._served.engine.alive:
            self._served.engine.start()
        with suppress(RequestError):  # without it such requests are refused
            await asyncio.to_thread(lambda: self._served.llm.grammars)

    def _listed(self, name: str) -> ListedModel:
        model = self._served.llm.model.checkpoint.path
        return ListedModel(name, self.settings.served_name, model, ModelState.LOADED, self._served)


def known_name(name: str, names: Collection[str]) -> str | None:
    """A name as it is known, where it may stand with or without the tag that stands for none; None: it is not."""
    if name in names:
        return name
    known = {each.removesuffix(_LATEST): each for each in names}
    return known.get(name.removesuffix(_LATEST))


class Holding:
    """ASGI middleware: what a request holds is let go once its answer has been sent, or cannot be."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as holds:
            scope[_HOLDS] = holds
            await self._app(scope, receive, send)


def when_sent(request: Request, action: Callable[[], object]) -> None:
    """Call ``action`` once the answer to a request has been sent, or cannot be."""
    holds: ExitStack = request.scope[_HOLDS]
    holds.callback(action)
