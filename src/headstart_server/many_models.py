"""Several models of one server: loaded when a request names them, unloaded when others need their room."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request

from headstart.common.memory import free_bytes, is_lack_of_memory, readable
from headstart.errors import HeadstartError
from headstart_server.arguments import ServeArguments
from headstart_server.async_engine import BusyError, ClosedError
from headstart_server.kept_model import KeptModel, end, longest_idle
from headstart_server.models import (
    ListedModel,
    Models,
    NotLoadedError,
    Served,
    UnknownModelError,
    known_name,
    when_sent,
)
from headstart_server.settings import ServerSettings

_FAILURE_SECONDS = 10.0
"""How long a failure to load is told again without another try."""
_SHOWN_NAMES = 20
"""Of the models that there are, in a refusal."""
_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True)
class Keeping:
    """When models are loaded and unloaded."""

    max_loaded: int | None = None
    """None: as many as memory holds."""
    keep_alive: float = 300.0
    """Seconds that a model stays behind its last request, unless that says otherwise; infinite: for good."""
    load_seconds: float = 300.0
    """Longest time that a request waits for its model."""
    max_waiting: int = 64
    """Requests that may wait for one model."""


class ManyModels(Models):
    """Models by name, each with an engine of its own while it is loaded.

    Args:
        models: name -> options, in their order; the first one answers requests that name none while none is loaded.
        settings: whom the server lets in, and its limits.
        keeping: when models are loaded and unloaded.
        free: bytes of memory that can still be had; None: nobody knows.
    """

    def __init__(
        self,
        models: Mapping[str, ServeArguments],
        settings: ServerSettings,
        keeping: Keeping,
        free: Callable[[], int | None] = free_bytes,
    ) -> None:
        super().__init__(settings)
        self._keeping = keeping
        self._free = free
        self._entries = {name: KeptModel.of(name, options) for name, options in models.items()}
        self._moving = asyncio.Lock()
        """Held while a model is loaded or unloaded."""
        self._changed = asyncio.Event()
        """Set, and replaced, when a model has become idle or is gone."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def held(self, name: str | None, request: Request, keep_alive: float | None = None) -> Served:
        """See ``Models``."""
        entry = self._entry(name)
        if entry.served is None:
            await self._until_loaded(entry, request)
        served = entry.served
        assert served is not None
        entry.holds += 1
        entry.used, entry.expires = time.monotonic(), None
        if keep_alive is not None:
            entry.keep = keep_alive
        when_sent(request, partial(self._let_go, entry))
        return served.named(name)

    def known(self, name: str | None) -> ListedModel:
        """See ``Models``."""
        entry = self._entry(name)
        adapter = None if name is None or entry.served is None else entry.served.adapter(name)
        return entry.listed() if adapter is None else entry.listed().adapted(adapter)

    def listed(self) -> Sequence[ListedModel]:
        """See ``Models``."""
        return [each for entry in self._entries.values() for each in entry.listed().with_adapters()]

    @property
    def serving(self) -> bool:
        """See ``Models``."""
        return not self._closing

    async def close(self) -> None:
        """See ``Models``; what waits for a model is refused."""
        self._closing = True
        self._tell_change()
        loading = [entry.loading for entry in self._entries.values() if entry.loading is not None]
        await asyncio.gather(*loading, *self._tasks, return_exceptions=True)
        await super().close()

    def _entry(self, name: str | None) -> KeptModel:
        if name is None:
            return max(self._entries.values(), key=lambda entry: (entry.served is not None, entry.used))
        known = known_name(name, self._entries)
        found = None if known is None else self._entries[known]
        if found is None:
            found = next((each for each in self._entries.values() if each.has_adapter(name)), None)
        if found is None:
            names = [*map(repr, list(self._entries)[:_SHOWN_NAMES]), *["..."] * (len(self._entries) > _SHOWN_NAMES)]
            raise UnknownModelError(f"model {name!r} is not served here; there are {', '.join(names)}.", "model")
        return found

    async def _until_loaded(self, entry: KeptModel, request: Request) -> None:
        """Wait for a model; the caller holds it before anything else happens."""
        deadline = time.monotonic() + self._keeping.load_seconds
        gone = asyncio.create_task(_gone(request))
        try:
            while entry.served is None:
                await self._wait(entry, gone, deadline)
        finally:
            gone.cancel()

    async def _wait(self, entry: KeptModel, gone: asyncio.Task[None], deadline: float) -> None:
        """Until an attempt to load a model is over.

        Args:
            gone: is done when the client has left.
            deadline: by ``time.monotonic``.
        """
        if self._closing:
            raise ClosedError("no more requests are taken: this server ends.")
        if entry.failure and time.monotonic() - entry.failed < _FAILURE_SECONDS:
            raise NotLoadedError(entry.failure, entry.again)
        if entry.waiting >= self._keeping.max_waiting:
            raise BusyError(f"{entry.waiting} requests wait for model {entry.name!r}; try again later.")
        entry.deserted = False
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._load(entry))
        entry.waiting += 1
        try:
            timeout = deadline - time.monotonic()
            await asyncio.wait({entry.loading, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            entry.waiting -= 1
        if gone.done() and entry.served is None:
            entry.deserted = not entry.waiting
            self._tell_change()
            raise NotLoadedError(f"model {entry.name!r} is not waited for any more.", again=True)
        if entry.served is None and time.monotonic() >= deadline:
            reason = entry.obstacle or "it is still being loaded"
            raise NotLoadedError(
                f"model {entry.name!r} was not loaded within {self._keeping.load_seconds:g} seconds: {reason}; try "
                "again later.",
                again=True,
            )

    async def _load(self, entry: KeptModel) -> None:
        """Load a model once there is room, or note why that cannot be."""
        try:
            while not self._closing and (entry.waiting or not entry.obstacle):
                changed = self._changed
                async with self._moving:
                    # Nobody's place is taken for a client that has left meanwhile.
                    if entry.deserted or (await self._make_room(entry) and await self._try(entry)):
                        return
                await changed.wait()
        except Exception as error:
            entry.again = is_lack_of_memory(error)
            reason = "memory is short." if entry.again else "it fails unexpectedly; the server's log says how."
            if isinstance(error, HeadstartError):
                reason = str(error)
            elif not entry.again:
                _log.exception("model %r could not be loaded.", entry.name)
            entry.failure = f"model {entry.name!r} cannot be loaded: {reason}"
            entry.failed = time.monotonic()
            _log.warning("%s", entry.failure)
        finally:
            entry.loading, entry.obstacle = None, ""

    async def _try(self, entry: KeptModel) -> bool:
        """Load a model; False: memory was short after all, and may be there later."""
        begun = time.monotonic()
        try:
            served = await asyncio.to_thread(entry.begin, self.settings, begun)
        except Exception as error:
            if not is_lack_of_memory(error):
                raise
            others = self._loaded()
            if not others:
                raise
            entry.obstacle = f"{str(error).rstrip('.')}, and {_named(others)} must be unloaded first"
            idle = longest_idle(others)
            if idle is not None:
                await self._unload(idle)
                return await self._try(entry)
            return False
        entry.served, entry.failure = served, ""
        entry.need, entry.keep = served.llm.memory.total, self._keeping.keep_alive
        entry.used = time.monotonic()
        self._expire_later(entry)
        _log.info("Loaded %s in %.1f s. %s", entry.name, served.loading_seconds, served.llm.memory.sentence())
        return True

    async def _make_room(self, entry: KeptModel) -> bool:
        """Unload what is idle until a model fits; False: what is left is at work.

        Raises:
            NotLoadedError: it would not fit alone.
        """
        while (obstacle := self._obstacle(entry, 0)) is not None:
            loaded = self._loaded()
            if self._obstacle(entry, sum(each.need for each in loaded), places=False) is not None:
                raise NotLoadedError(f"it takes {obstacle}; give a smaller model.", again=False)
            if not entry.obstacle:
                await asyncio.to_thread(entry.look)  # what cannot be loaded takes nobody's place
            idle = longest_idle(loaded)
            spare = sum(each.need for each in loaded if each.idle)
            if idle is None or self._obstacle(entry, spare, places=False) is not None:
                entry.obstacle = f"it takes {obstacle}, and {_named(loaded)} must be unloaded first"
                return False
            await self._unload(idle)
        return True

    def _obstacle(self, entry: KeptModel, spare: int, places: bool = True) -> str | None:
        """What a model takes and is not there, as a part of a sentence; None: it fits.

        Args:
            spare: bytes that others would give back.
            places: whether as many may be loaded is asked as well.
        """
        most = self._keeping.max_loaded
        if places and most is not None and len(self._loaded()) >= most:
            return f"a place among the {most} models that may be loaded at once"
        free = self._free()
        if free is not None and entry.need > free + spare:
            return f"{readable(entry.need)} of memory, but {readable(free)} are free"
        return None

    async def _unload(self, entry: KeptModel) -> None:
        """Let a model go that nobody holds; ``_moving`` is held."""
        assert entry.served is not None
        last = [entry.served]
        entry.served = entry.expires = None
        await asyncio.to_thread(end, last)
        _log.info("Unloaded %s.", entry.name)
        self._tell_change()

    def _let_go(self, entry: KeptModel) -> None:
        """A request has been answered."""
        entry.holds -= 1
        entry.used = time.monotonic()
        if not entry.holds:
            self._expire_later(entry)
            self._tell_change()

    def _expire_later(self, entry: KeptModel) -> None:
        """Unload a model when its time is over, unless it is held or asked again until then."""
        if entry.keep == math.inf:
            entry.expires = None
            return
        entry.expires = time.monotonic() + entry.keep
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer = asyncio.get_running_loop().call_later(entry.keep, lambda: self._spawn(self._expire(entry)))

    async def _expire(self, entry: KeptModel) -> None:
        async with self._moving:
            over = entry.expires is not None and time.monotonic() >= entry.expires
            if over and entry.served is not None and not entry.holds and not self._closing:
                await self._unload(entry)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _loaded(self) -> list[KeptModel]:
        return [entry for entry in self._entries.values() if entry.served is not None]

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _gone(request: Request) -> None:
    """Until the client of a request has left; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _named(entries: Sequence[KeptModel]) -> str:
    return " or ".join(repr(entry.name) for entry in entries)
