"""Requests against a server as its users send them, each timed from the outside."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np

from headstart.errors import ConfigError, HeadstartError

CHAT_PATH = "/v1/chat/completions"
_TIMEOUT = 900.0


@dataclass(frozen=True)
class Load:
    """How requests arrive. Closed: users, each of whom asks again when answered. Open: at random moments."""

    users: int | None = None
    rate: float | None = None
    """Mean arrivals per second, exponentially distributed gaps (a Poisson process)."""

    @property
    def name(self) -> str:
        return f"{self.users} at a time" if self.rate is None else f"{self.rate:g}/s"

    def arrivals(self, count: int, seed: int) -> list[float]:
        """Seconds from the beginning at which the requests of an open loop are sent."""
        assert self.rate is not None
        gaps = np.random.default_rng(seed).exponential(1 / self.rate, size=count)
        times: list[float] = (np.cumsum(gaps) - gaps[0]).tolist()
        return times


@dataclass(frozen=True)
class Answered:
    """One request as its sender saw it; times in seconds from the beginning of the run."""

    sent: float
    first: float = 0.0
    """When the first piece of text was there."""
    last: float = 0.0
    tokens: int = 0
    gaps: tuple[float, ...] = ()
    """Waits between one piece of text and the next."""
    rounds: int = 0
    text: str = ""
    error: str | None = None
    """Why there was no answer; then the rest says nothing."""

    @property
    def first_token_seconds(self) -> float:
        return self.first - self.sent

    @property
    def seconds_per_token(self) -> float | None:
        """After the first piece, each token's share of the time (its inter-token latency); None: one token only."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


class Client:
    """Talks to one server. Every request has a connection of its own.

    Args:
        url: where the server listens, such as "http://127.0.0.1:8000".
        key: an API key, where it asks for one.

    Raises:
        ConfigError: the address is none of a server.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
            raise ConfigError(f"--url is {url!r}; give an address like http://127.0.0.1:8000.")
        self._parts = parts
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._hung_up = threading.Event()

    def hang_up(self) -> None:
        """Leave every stream that is being read at its next piece; for good."""
        self._hung_up.set()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON at a path.

        Raises:
            HeadstartError: there is no server, it refuses, or it is not one of Headstart's.
        """
        address = self._parts.geturl()
        try:
            connection = self._connection(30.0)
            connection.request("GET", path, headers=self._headers)
            reply = connection.getresponse()
            body = reply.read()
            connection.close()
            if reply.status == 401:
                raise HeadstartError(f"{address} wants an API key; give it with --api-key-file.")
            if reply.status != 200:
                raise HeadstartError(
                    f"{address}{path} was answered with status {reply.status}; give the address of a Headstart server "
                    "with --url."
                )
            result: dict[str, Any] = json.loads(body)
        except OSError as error:
            raise HeadstartError(
                f"no server answers at {address} ({error.strerror or error}); start one with 'headstart serve', or "
                "give its address with --url."
            ) from error
        except (http.client.HTTPException, ValueError) as error:
            raise HeadstartError(
                f"what answers at {address} is no Headstart server; give the address of one with --url."
            ) from error
        return result

    def ask(self, body: Mapping[str, Any], began: float) -> Answered:
        """Stream the answer to a chat; never raises for what the server does."""
        sent = time.perf_counter() - began
        try:
            connection = self._connection(_TIMEOUT)
            connection.request("POST", CHAT_PATH, json.dumps(body).encode(), self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                answered = Answered(sent, error=_error(reply.status, reply.read()))
            else:
                answered = self._read_stream(reply, sent, began)
            connection.close()
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            return Answered(sent, error=f"{type(error).__name__}: {error}")
        return answered

    def _read_stream(self, reply: http.client.HTTPResponse, sent: float, began: float) -> Answered:
        moments: list[float] = []
        said: list[str] = []
        usage: dict[str, Any] | None = None
        for line in reply:
            if self._hung_up.is_set():
                break
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[len(b"data: ") :])
            if "error" in chunk:
                return Answered(sent, error=str(chunk["error"]["message"]))
            if piece := "".join(choice["delta"].get("content") or "" for choice in chunk["choices"]):
                moments.append(time.perf_counter() - began)
                said.append(piece)
            usage = chunk.get("usage") or usage
        if usage is None:
            return Answered(sent, error="the stream broke off.")
        last = time.perf_counter() - began
        first = moments[0] if moments else last
        gaps = tuple(after - before for before, after in pairwise(moments))
        rounds = usage.get("speculation", {}).get("rounds", 0)
        return Answered(sent, first, last, usage["completion_tokens"], gaps, rounds, "".join(said))

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        parts = self._parts
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def send(
    client: Client,
    bodies: Sequence[Mapping[str, Any]],
    load: Load,
    seed: int,
    on_answer: Callable[[Answered], None] = lambda answered: None,
) -> list[Answered]:
    """Send all requests under a load; their outcomes, in the order of ``bodies``. ``seed`` fixes the arrivals.

    Cut short, it leaves no request behind.
    """
    began = time.perf_counter()

    def ask(body: Mapping[str, Any]) -> Answered:
        answered = client.ask(body, began)
        on_answer(answered)
        return answered

    moments = [0.0] * len(bodies) if load.users is not None else load.arrivals(len(bodies), seed)
    with ThreadPoolExecutor(load.users or len(bodies)) as pool:
        try:
            futures = []
            for body, moment in zip(bodies, moments, strict=True):
                time.sleep(max(0.0, began + moment - time.perf_counter()))
                futures.append(pool.submit(ask, body))
            return [future.result() for future in futures]
        except BaseException:
            client.hang_up()
            pool.shutdown(cancel_futures=True)
            raise


def _has_port(parts: SplitResult) -> bool:
    """Whether the port, if one is named, is a number that a port can have."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def _error(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"status {status}: {message}"
