"""One engine with the application of ``headstart serve`` in front of it, as a replica of a Serve deployment."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Message

from headstart_integrations.ray.arguments import RayArguments
from headstart_integrations.ray.forwarding import BODY, START, Forwarded, answers


class Replica:
    """Serve calls the constructor where the replica shall run, ``check_health`` every few seconds, and ``__del__``
    when its requests have ended or the drain's time is over."""

    def __init__(self, name: str, arguments: RayArguments, keys: tuple[str, ...]) -> None:
        import torch

        from headstart_server.app import create_app
        from headstart_server.engine_thread import EngineThread

        torch.set_num_threads(arguments.threads)
        self.name = name
        llm = arguments.load()
        self._engine = EngineThread(llm, arguments.max_waiting, arguments.max_seconds)
        self._engine.start()
        self._engine.rehearse()
        self._app = create_app(llm, arguments.settings(keys), engine=self._engine)

    async def answer(self, request: Forwarded) -> AsyncIterator[list[Message]]:
        """The application's messages, as it sends them; their head names the replica."""
        async for messages in answers(self._app, request):
            for message in messages:
                if message["type"] == START:
                    message["headers"] = [*message["headers"], (b"headstart-replica", self.name.encode())]
            yield messages

    async def whole(self, request: Forwarded) -> dict[str, Any]:
        """One whole answer, and whose it is: for what is asked of all replicas."""
        messages = [each async for ready in answers(self._app, request) for each in ready]
        return {
            "replica": self.name,
            "node": socket.gethostname(),
            "process": os.getpid(),
            "status": next(each["status"] for each in messages if each["type"] == START),
            "body": b"".join(each.get("body", b"") for each in messages if each["type"] == BODY),
        }

    def check_health(self) -> None:
        """Serve replaces the replica if this raises.

        Raises:
            RuntimeError: the engine has ended.
        """
        if not self._engine.alive or self._engine.closing:
            raise RuntimeError("the engine's thread has ended.")

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.stop()
