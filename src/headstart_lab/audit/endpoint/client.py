"""One server that speaks the OpenAI API, asked as its users ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headstart.errors import ConfigError, HeadstartError
from headstart_lab.audit.endpoint.answers import (
    CHAT,
    COMPLETIONS,
    Answer,
    BrokenStream,
    WrongForm,
    message_of,
    streamed_answer,
    whole_answer,
)
from headstart_lab.extra import missing
from headstart_lab.provenance import without_user

try:
    import httpx2
except ImportError as error:
    raise missing(error) from error

_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}
_TIMEOUT = 600.0
_MISSING = (404, 405, 501)
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds to wait, time after time, where a server puts a request off and does not say for how long."""
_LONGEST_WAIT = 60.0


class Refused(Exception):
    """The server said no to a request: its status (400 to 499, or 501) and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status


class FailedRequest(HeadstartError):
    """The server failed at a request: with a status of 500 or more, in the middle of it, or by an answer of no known
    form."""


@dataclass
class Endpoint:
    """A server at an address.

    Args:
        url: such as "http://127.0.0.1:8000"; a "/v1" at its end, and one of its routes, is left out. A name and a
            password in it are sent and not shown.
        model: its name there; None: the first that the server lists.
        key: an API key, where it asks for one.
        api: "chat" or "completions": through the model's chat template, or as raw text.
        concurrency: requests that are under way at once, at most.
        transport: how requests travel; None: over the network.
        on_request: called after each request.

    Raises:
        ConfigError: the address is none.
    """

    url: str
    model: str | None = None
    key: str | None = None
    api: str = CHAT
    concurrency: int = 8
    transport: httpx2.AsyncBaseTransport | None = None
    on_request: Callable[[], None] = lambda: None
    asked: int = field(default=0, init=False)
    """Requests for text so far, but for times that one was put off (status 429)."""
    _user: tuple[str, str] | None = field(default=None, init=False, repr=False)
    """Name and password of the address."""
    _answered: bool = field(default=False, init=False)
    _limit: str = field(default="max_tokens", init=False)
    """Its name for how many tokens an answer may have."""
    _seeds: bool = field(default=True, init=False)
    _stream_options: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        for end in (*_PATHS.values(), "/v1"):
            self.url = self.url.removesuffix(end)
        try:
            parts = httpx2.URL(self.url)
        except httpx2.InvalidURL:
            parts = httpx2.URL("")
        self.url = without_user(self.url)
        self._user = (parts.username, parts.password) if parts.userinfo else None
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ConfigError(f"--url is {self.url!r}; give an address like http://127.0.0.1:8000.")

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Endpoint]:
        """Keep connections open in here, and know the model's name.

        Raises:
            HeadstartError: there is no server, it sends elsewhere or lets nobody in, or it lists no model.
        """
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        limits = httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
        self._room = asyncio.Semaphore(self.concurrency)
        async with httpx2.AsyncClient(
            base_url=self.url,
            headers=headers,
            auth=self._user,
            timeout=_TIMEOUT,
            limits=limits,
            transport=self.transport,
        ) as self._client:
            if self.model is None:
                reply = await self._sent("GET", "/v1/models")
                if reply.status_code in (401, 403):
                    raise self._shut_out(reply)
                if reply.has_redirect_location:
                    raise self._moved(reply, "/v1/models")
                listed = _object(reply).get("data")
                entries = listed if isinstance(listed, list) else []
                names = [entry["id"] for entry in entries if isinstance(entry, dict) and entry.get("id")]
                if not names:
                    raise HeadstartError(f"{self.url} lists no model; name one with --model.")
                self.model = str(names[0])
            yield self

    async def look(self, path: str) -> dict[str, Any]:
        """The JSON object at a path; empty: there is none, or not for us.

        Raises:
            HeadstartError: there is no server.
        """
        return _object(await self._sent("GET", path))

    async def still_there(self) -> None:
        """Raises:
        HeadstartError: the server is gone, or fails at this, too.
        """
        try:
            await self.look("/v1/models")
        except FailedRequest as error:
            # No fault of one check any more.
            raise HeadstartError(str(error)) from error

    async def ask(self, prompt: str | Sequence[Mapping[str, str]], stream: bool = False, **fields: Any) -> Answer:
        """The answer to a prompt. ``fields``: of the request besides; None leaves one out.

        Raises:
            Refused: the server does not do that.
            FailedRequest: the server failed.
            HeadstartError: the server is gone, sends elsewhere, lets nobody in, or puts requests off for too
                long.
        """
        try:
            return await self._ask(prompt, stream, fields)
        except Refused as refusal:
            # Two fields that the question does not depend on, and that some servers do not know.
            before = self._limit, self._stream_options
            if self.api == CHAT and "max_completion_tokens" in str(refusal):
                self._limit = "max_completion_tokens"
            elif stream and self._stream_options:
                self._stream_options = False
            else:
                raise
        try:
            return await self._ask(prompt, stream, fields)
        except Refused:
            self._limit, self._stream_options = before
            raise

    async def draw(self, prompt: str, seed: int | None, **fields: Any) -> Answer:
        """An answer that is drawn with a seed, where the server takes seeds. Otherwise as ``ask``."""
        if seed is not None and self._seeds:
            try:
                return await self.ask(prompt, seed=seed, **fields)
            except Refused:
                answer = await self.ask(prompt, **fields)
                self._seeds = False
                return answer
        return await self.ask(prompt, **fields)

    async def _ask(self, prompt: str | Sequence[Mapping[str, str]], stream: bool, fields: Mapping[str, Any]) -> Answer:
        body: dict[str, Any] = {"model": self.model, **self._spoken(prompt), **self._named(fields)}
        if stream:
            body["stream"] = True
            if self._stream_options:
                body["stream_options"] = {"include_usage": True}
        async with self._room:
            self.asked += 1
            reply = await self._taken(body)
        self.on_request()
        self._refuse(reply)
        try:
            answer = streamed_answer(reply.text, self.api) if stream else whole_answer(reply.json(), self.api)
        except BrokenStream as error:
            raise FailedRequest(f"{self.url} {error}") from error
        except (WrongForm, ValueError, RecursionError) as error:
            raise FailedRequest(f"{self.url} answered in another form than OpenAI's ({error}).") from error
        self._answered = True
        return answer

    def _refuse(self, reply: httpx2.Response) -> None:
        """Raise what an unwelcome status means."""
        status = reply.status_code
        if reply.has_redirect_location:
            raise self._moved(reply, _PATHS[self.api])
        if status in (401, 403) and not self._answered:
            raise self._shut_out(reply)
        if 400 <= status < 500 or status in _MISSING:
            raise Refused(status, message_of(reply.text))
        if not reply.is_success:
            raise FailedRequest(f"{self.url} failed with status {status}: {message_of(reply.text)}")

    async def _taken(self, body: Mapping[str, Any]) -> httpx2.Response:
        """The reply to a request for text, once the server takes it."""
        for wait in (*_WAITS, None):
            reply = await self._sent("POST", _PATHS[self.api], body)
            told = reply.headers.get("retry-after", "")
            if reply.status_code != 429 and not (reply.status_code == 503 and told):
                return reply
            if wait is not None:
                await asyncio.sleep(min(float(told), _LONGEST_WAIT) if told.replace(".", "", 1).isdecimal() else wait)
        raise HeadstartError(
            f"{self.url} puts a request off again and again (status {reply.status_code}: {message_of(reply.text)}); "
            "lower --concurrency, or ask when there is less to do."
        )

    async def _sent(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx2.Response:
        """A reply of any status.

        Raises:
            FailedRequest: the connection broke, or there was no answer in time.
            HeadstartError: there is no server.
        """
        for again in (True, False):
            try:
                reply = await self._client.request(method, path, json=body)
                break
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                raise HeadstartError(
                    f"no server answers at {self.url} ({type(error).__name__}: {error}); start one, or mend the "
                    "address."
                ) from error
            except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError) as error:
                # A server may close an idle connection in the moment in which it is used again.
                if not again:
                    raise FailedRequest(f"{self.url} broke off twice ({error}).") from error
            except httpx2.TimeoutException as error:
                raise FailedRequest(f"{self.url} gave no answer within {_TIMEOUT:.0f} seconds.") from error
            except httpx2.HTTPError as error:
                raise FailedRequest(f"{self.url} broke off ({type(error).__name__}: {error}).") from error
        return reply

    def _moved(self, reply: httpx2.Response, path: str) -> HeadstartError:
        elsewhere = without_user(reply.headers["location"]).removesuffix(path)
        return HeadstartError(f"{self.url} sends on to {elsewhere}; give that address.")

    def _shut_out(self, reply: httpx2.Response) -> HeadstartError:
        if self.key is None:
            return HeadstartError(f"{self.url} wants an API key; give it with --api-key-file.")
        said = f"status {reply.status_code}: {message_of(reply.text)}"
        return HeadstartError(f"{self.url} does not take the key in --api-key-file ({said}); give another one.")

    def _spoken(self, prompt: str | Sequence[Mapping[str, str]]) -> dict[str, Any]:
        if self.api == COMPLETIONS:
            return {"prompt": prompt if isinstance(prompt, str) else "\n\n".join(each["content"] for each in prompt)}
        return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)}

    def _named(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request; ``top`` is how many best tokens are listed, by whatever name."""
        named = {
            self._limit if name == "max_tokens" else name: value
            for name, value in fields.items()
            if value is not None and name != "top"
        }
        if (top := fields.get("top")) is not None:
            named |= {"logprobs": True, "top_logprobs": top} if self.api == CHAT else {"logprobs": top}
        return named


def _object(reply: httpx2.Response) -> dict[str, Any]:
    """The JSON object that a reply holds; empty: none."""
    try:
        value = reply.json() if reply.is_success else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
