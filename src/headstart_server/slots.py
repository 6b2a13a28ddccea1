"""Slots as llama.cpp's server has them. Nothing is computed in one here: a slot is what the last request of its number
said, and names that in order to save, restore or erase what the cache holds of it.

Each key has slots of its own, as many as requests may decode together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request

from headstart.drafting.registry import available_drafters
from headstart.engine.sequence import Sequence as EngineSequence
from headstart.errors import RequestError
from headstart_server.access import TENANT
from headstart_server.engine_thread import EngineThread
from headstart_server.settings import ServerSettings
from headstart_server.slot_files import SlotFiles, SlotText, common

_SIMILAR = 0.1
"""Of a prompt: a slot that begins so far alike is taken for it, as llama.cpp does."""


@dataclass(eq=False)
class Slot:
    """One of them."""

    id: int
    text: SlotText = field(default_factory=lambda: SlotText(np.zeros(0, np.int32), ""))
    """What the last request has left, or a file."""
    used: float = 0.0
    requests: int = 0
    """That it was named by so far."""
    last: EngineSequence | None = None
    """Of the last request, as long as it runs."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has."""

    def told(self, context: int, speculative: bool) -> dict[str, Any]:
        """As llama.cpp tells it; ``context``: tokens that it may have; ``speculative``: whether anybody guesses."""
        told = {
            "id": self.id,
            "id_task": self.requests - 1,
            "n_ctx": context,
            "speculative": speculative,
            "is_processing": self.last is not None,
            "n_prompt_tokens": len(self.text.tokens),
        }
        if self.last is None:
            return told
        params, most = self.last.params, self.last.stops.max_tokens
        return told | {
            "n_prompt_tokens": self.last.prompt_length,
            "params": {
                "n_predict": most,
                "temperature": params.temperature,
                "top_k": params.top_k,
                "top_p": params.top_p,
                "min_p": params.min_p,
            },
            "next_token": [
                {"has_next_token": True, "n_remain": most - self.last.num_output, "n_decoded": self.last.num_output}
            ],
        }


class Slots:
    """Those of one engine, on the event loop.

    Args:
        engine: computes what they say.
        settings: the server's.
    """

    def __init__(self, engine: EngineThread, settings: ServerSettings) -> None:
        self._limits = engine.llm.engine.limits
        method = available_drafters().get(engine.llm.drafter_name)  # a program may bring one without a row
        self._speculative = method is None or method.kind != "plain"
        self._of: dict[str, list[Slot]] = {}
        """Whose -> all of them."""
        directory, most = settings.slot_save_path, settings.slot_save_bytes
        self._files = None if directory is None else SlotFiles(engine, directory, most, len(settings.api_keys) > 1)
        self._turn = asyncio.Lock()
        """Of who reads or writes files: one at a time, so that no thread but one waits for them."""

    def require(self, slot_id: int | None, least: int = -1) -> None:
        """Refuse a number that no slot has; None, -1: whichever.

        Raises:
            RequestError: it is one.
        """
        most = self._limits.max_sequences - 1
        if slot_id is not None and not least <= slot_id <= most:
            raise RequestError(
                f"id_slot is {slot_id}; it must lie in [{least}, {most}], there being --batch-size slots.", "id_slot"
            )

    @contextmanager
    def taken(self, slot_id: int | None, request: Request, sequence: EngineSequence) -> Iterator[int]:
        """The slot of a request while it runs: the one of this number, or as llama.cpp chooses one."""
        prompt = SlotText(np.array(sequence.tokens, np.int32), sequence.cache_salt)
        mine = self._mine(request)
        slot = self._nearest(mine, prompt) if slot_id is None or slot_id < 0 else mine[slot_id]
        ended = slot.ended = asyncio.Event()
        slot.last, slot.requests = sequence, slot.requests + 1
        try:
            yield slot.id
        finally:
            if slot.last is sequence:
                slot.text, slot.last = prompt._replace(tokens=np.array(sequence.tokens, np.int32)), None
                slot.used = time.monotonic()
            ended.set()

    def told(self, request: Request) -> list[dict[str, Any]]:
        """All slots of who asks."""
        return [slot.told(self._limits.max_context, self._speculative) for slot in self._mine(request)]

    async def save(self, slot_id: int, filename: str, request: Request) -> dict[str, Any]:
        """Write what the cache holds of a slot's text; llama.cpp's reply.

        Raises:
            RequestError: it cannot be written.
        """
        slot, files = await self._at_rest(slot_id, request), self._kept()
        async with self._turn:
            begun = time.perf_counter()
            saved, nbytes = await asyncio.to_thread(files.save, filename, _owner(request), slot.text)
        timings = {"save_ms": 1000 * (time.perf_counter() - begun)}
        return {"id_slot": slot_id, "filename": filename, "n_saved": saved, "n_written": nbytes, "timings": timings}

    async def restore(self, slot_id: int, filename: str, request: Request) -> dict[str, Any]:
        """Let requests of the one who asks find what a file holds; llama.cpp's reply.

        Raises:
            RequestError: it cannot be read.
        """
        slot, files = await self._at_rest(slot_id, request), self._kept()
        async with self._turn:
            begun = time.perf_counter()
            slot.text, nbytes = await asyncio.to_thread(files.restore, filename, _owner(request))
        slot.used, count = time.monotonic(), len(slot.text.tokens)
        timings = {"restore_ms": 1000 * (time.perf_counter() - begun)}
        return {"id_slot": slot_id, "filename": filename, "n_restored": count, "n_read": nbytes, "timings": timings}

    async def erase(self, slot_id: int, request: Request) -> dict[str, Any]:
        """Forget a slot's text, and what the cache holds of it alone; llama.cpp's reply."""
        slot, files = await self._at_rest(slot_id, request), self._kept()
        text, slot.text = slot.text, Slot(slot_id).text
        others = [other.text for other in self._mine(request)]
        await asyncio.to_thread(files.erase, text, others)
        return {"id_slot": slot_id, "n_erased": len(text.tokens)}

    def _kept(self) -> SlotFiles:
        if self._files is None:
            raise HTTPException(501, "slots are not kept here; start the server with --slot-save-path DIR.")
        return self._files

    async def _at_rest(self, slot_id: int, request: Request) -> Slot:
        """A slot, once the request that runs there has ended."""
        self.require(slot_id, least=0)
        slot = self._mine(request)[slot_id]
        if slot.last is not None:
            await slot.ended.wait()
        return slot

    def _mine(self, request: Request) -> list[Slot]:
        return self._of.setdefault(_owner(request), [Slot(place) for place in range(self._limits.max_sequences)])

    def _nearest(self, slots: list[Slot], prompt: SlotText) -> Slot:
        idle = [slot for slot in slots if slot.last is None] or slots
        alike = [(common(prompt, slot.text), -slot.id, slot) for slot in idle]
        best = max(alike)
        if best[0] > _SIMILAR * len(prompt.tokens):
            return best[-1]
        return min(idle, key=lambda slot: (slot.used, slot.id))


def _owner(request: Request) -> str:
    return str(request.scope.get(TENANT) or "")
