"""One server that speaks the OpenAI API, asked as its users ask it; its answers in one form, whichever server it is."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from headstart.errors import ConfigError, HeadstartError

CHAT, COMPLETIONS = "chat", "completions"
_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}
_ID = "token_id:"
"""How vLLM and Headstart spell tokens for ``return_tokens_as_token_ids``."""
_TIMEOUT = 600.0
_MISSING = (404, 405, 501)


class Refused(Exception):
    """The server said no to a request: its status (400 to 499, or 501) and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status


class FailedRequest(HeadstartError):
    """The server failed at a request (status 500 or more): what it says of it."""


@dataclass(frozen=True)
class Listed:
    """A token and its log-probability, as a reply lists it."""

    key: str
    """What tells it from other tokens: its id where the server gives one, else its text."""
    text: str
    logprob: float


@dataclass(frozen=True)
class Position:
    """One token of an answer, and those that could have stood there."""

    chosen: Listed
    top: tuple[Listed, ...]
    """The most probable tokens, best first. Servers may put the chosen one among them though it is none."""


@dataclass(frozen=True)
class Choice:
    """One answer to a request."""

    text: str
    finish_reason: str | None
    positions: tuple[Position, ...] | None = None
    """[token] where log-probabilities were asked for and given."""
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments as JSON text) of each tool call."""


@dataclass(frozen=True)
class Answer:
    """Everything that came back for one request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    total_tokens: int | None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def first(self) -> Choice:
        return self.choices[0]


@dataclass
class Endpoint:
    """A server at an address.

    Args:
        url: such as "http://127.0.0.1:8000"; a "/v1" at its end is left out.
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
    """Requests for text so far."""

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/").removesuffix("/v1")
        try:
            parts = httpx2.URL(self.url)
        except httpx2.InvalidURL:
            parts = httpx2.URL("")
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ConfigError(f"--url is {self.url!r}; give an address like http://127.0.0.1:8000.")

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Endpoint]:
        """Keep connections open in here, and know the model's name.

        Raises:
            HeadstartError: there is no server, it lets nobody in, or it lists no model.
        """
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        limits = httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
        self._room = asyncio.Semaphore(self.concurrency)
        async with httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=_TIMEOUT, limits=limits, transport=self.transport
        ) as self._client:
            if self.model is None:
                listed = await self.look("/v1/models")
                names = [entry.get("id") for entry in (listed or {}).get("data", []) if isinstance(entry, dict)]
                if not names:
                    raise HeadstartError(f"{self.url} lists no model; name one with --model.")
                self.model = str(names[0])
            yield self

    async def look(self, path: str) -> dict[str, Any] | None:
        """The JSON object at a path; None: there is none.

        Raises:
            HeadstartError: there is no server, or it lets nobody in.
        """
        try:
            reply = await self._client.get(path)
        except httpx2.HTTPError as error:
            raise HeadstartError(
                f"no server answers at {self.url} ({type(error).__name__}: {error}); start one, or mend the address."
            ) from error
        if reply.status_code in (401, 403):
            raise HeadstartError(f"{self.url} wants an API key; give it with --api-key-file.")
        try:
            value = reply.json() if reply.is_success else None
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    async def ask(self, prompt: str | Sequence[Mapping[str, str]], stream: bool = False, **fields: Any) -> Answer:
        """The answer to a prompt. ``fields``: of the request besides; None leaves one out.

        Raises:
            Refused: the server does not do that.
            FailedRequest: the server failed.
            HeadstartError: its answer has another form than OpenAI's.
        """
        body: dict[str, Any] = {"model": self.model, **self._spoken(prompt), **self._named(fields)}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._room:
            self.asked += 1
            reply = await self._posted(body)
        self.on_request()
        if 400 <= reply.status_code < 500 or reply.status_code in _MISSING:
            if reply.status_code in (401, 403):
                raise HeadstartError(f"{self.url} wants an API key; give it with --api-key-file.")
            raise Refused(reply.status_code, _message(reply.text))
        if not reply.is_success:
            raise FailedRequest(f"{self.url} failed with status {reply.status_code}: {_message(reply.text)}")
        try:
            return self._from_stream(reply.text) if stream else self._answer(reply.json())
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise HeadstartError(
                f"{self.url} answered in another form than OpenAI's ({type(error).__name__}: {error})."
            ) from error

    async def _posted(self, body: Mapping[str, Any]) -> httpx2.Response:
        for again in (True, False):
            try:
                return await self._client.post(_PATHS[self.api], json=body)
            except httpx2.RemoteProtocolError as error:
                # A server may close an idle connection in the moment in which it is used again.
                if not again:
                    raise HeadstartError(f"{self.url} broke off twice ({error}).") from error
            except httpx2.HTTPError as error:
                raise HeadstartError(f"{self.url} broke off ({type(error).__name__}: {error}).") from error
        raise AssertionError("unreachable")

    def _spoken(self, prompt: str | Sequence[Mapping[str, str]]) -> dict[str, Any]:
        if self.api == COMPLETIONS:
            return {"prompt": prompt if isinstance(prompt, str) else "\n\n".join(each["content"] for each in prompt)}
        return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)}

    def _named(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request; ``top`` is how many best tokens are listed, by whatever name."""
        named = {name: value for name, value in fields.items() if value is not None and name != "top"}
        if (top := fields.get("top")) is not None:
            named |= {"logprobs": True, "top_logprobs": top} if self.api == CHAT else {"logprobs": top}
        return named

    def _answer(self, reply: Mapping[str, Any]) -> Answer:
        choices = sorted(reply["choices"], key=lambda choice: int(choice["index"]))
        return _answer([self._choice(choice) for choice in choices], reply.get("usage"))

    def _choice(self, choice: Mapping[str, Any]) -> Choice:
        message = choice["message"] if self.api == CHAT else {"content": choice["text"]}
        calls = [
            (str(call["function"]["name"]), str(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        positions = self._positions([choice.get("logprobs")])
        return Choice(message.get("content") or "", choice.get("finish_reason"), positions, tuple(calls))

    def _from_stream(self, text: str) -> Answer:
        """A stream's pieces put together."""
        chunks, usage, ended = [], None, False
        for line in text.splitlines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            ended = ended or data == "[DONE]"
            if data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise HeadstartError(f"{self.url} broke off a stream: {_message(data)}")
            usage = chunk.get("usage") or usage
            chunks += chunk["choices"]
        if not ended:
            raise HeadstartError(f"{self.url} ended a stream without [DONE].")
        grown: dict[int, list[dict[str, Any]]] = {}
        for chunk in chunks:
            grown.setdefault(int(chunk["index"]), []).append(chunk)
        return _answer([self._grown(grown[index]) for index in sorted(grown)], usage)

    def _grown(self, chunks: Sequence[dict[str, Any]]) -> Choice:
        pieces = [chunk["delta"] if self.api == CHAT else {"content": chunk["text"]} for chunk in chunks]
        reasons = [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")]
        calls: dict[int, list[str]] = {}
        for piece in pieces:
            for call in piece.get("tool_calls") or ():
                name, arguments = calls.setdefault(int(call.get("index", 0)), ["", ""])
                told = call.get("function") or {}
                calls[int(call.get("index", 0))] = [
                    name + (told.get("name") or ""),
                    arguments + (told.get("arguments") or ""),
                ]
        return Choice(
            "".join(piece.get("content") or "" for piece in pieces),
            reasons[-1] if reasons else None,
            self._positions([chunk.get("logprobs") for chunk in chunks]),
            tuple((name, arguments) for _, (name, arguments) in sorted(calls.items())),
        )

    def _positions(self, told: Sequence[Mapping[str, Any] | None]) -> tuple[Position, ...] | None:
        given = [each for each in told if each]
        if not given:
            return None
        positions: list[Position] = []
        for each in given:
            positions += _chat_positions(each) if self.api == CHAT else _completion_positions(each)
        return tuple(positions)


def _answer(choices: Sequence[Choice], usage: Mapping[str, Any] | None) -> Answer:
    usage = usage or {}
    return Answer(tuple(choices), *(usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total")))


def _chat_positions(told: Mapping[str, Any]) -> list[Position]:
    def listed(entry: Mapping[str, Any]) -> Listed:
        spelt, raw = str(entry["token"]), entry.get("bytes")
        text = spelt if raw is None else bytes(raw).decode(errors="replace")
        key = str(entry["id"]) if isinstance(entry.get("id"), int) else spelt.removeprefix(_ID)
        return Listed(key, text, float(entry["logprob"]))

    return [
        Position(listed(entry), _best_first(listed(other) for other in entry.get("top_logprobs") or ()))
        for entry in told.get("content") or ()
    ]


def _completion_positions(told: Mapping[str, Any]) -> list[Position]:
    if "content" in told:  # llama.cpp's server answers completions in the form of chats.
        return _chat_positions(told)
    tops = told.get("top_logprobs") or [None] * len(told["tokens"])
    return [
        Position(
            Listed(token.removeprefix(_ID), token, float(logprob)),
            _best_first(Listed(key.removeprefix(_ID), key, float(value)) for key, value in (top or {}).items()),
        )
        for token, logprob, top in zip(told["tokens"], told["token_logprobs"], tops, strict=True)
        if logprob is not None
    ]


def _best_first(listed: Any) -> tuple[Listed, ...]:
    """Sorted; entries of one key are one token's, or cannot be told apart: their probabilities are added."""
    merged: dict[str, Listed] = {}
    for each in listed:
        if (known := merged.get(each.key)) is not None:
            total = math.exp(known.logprob) + math.exp(each.logprob)
            each = Listed(each.key, each.text, math.log(total) if total > 0 else known.logprob)
        merged[each.key] = each
    return tuple(sorted(merged.values(), key=lambda each: -each.logprob))


def _message(text: str) -> str:
    """The words of an error reply."""
    try:
        told = json.loads(text)
        told = told.get("error", told) if isinstance(told, dict) else told
        words = str(told.get("message", told) if isinstance(told, dict) else told)
    except ValueError:
        words = text
    return " ".join(words.split())[:300]
