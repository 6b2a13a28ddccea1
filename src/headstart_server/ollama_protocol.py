"""The bodies of ``POST /api/chat`` and ``POST /api/generate``, and the requests that they stand for.

The form is Ollama's, as its API page describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from headstart.errors import RequestError
from headstart_server.chat_protocol import ChatBody
from headstart_server.conversations_protocol import ConversationBody
from headstart_server.durations import seconds
from headstart_server.fields import Body, ListOf, at_most, one_of

_INNER = {"num_predict": "max_tokens"}
"""Option -> its name in a chat, where that differs."""
_ENGINES = frozenset(
    {
        *("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa"),
        *("low_vram", "f16_kv", "logits_all", "vocab_only", "penalize_newline", "draft_num_predict"),
    }
)
"""Options that say how an engine works; the server's own command line does."""
_FOREVER = -2
"""A ``num_predict`` of as many tokens as fit into the context, as -1 is here."""


def _seconds(value: Any) -> float | None:
    try:
        return seconds(value)
    except ValueError:
        raise PydanticCustomError("duration", "It must be a number of seconds, or a time such as 5m") from None


def _streamed(value: Any) -> Any:
    return True if value is None else value


KeepAlive = Annotated[float | None, BeforeValidator(_seconds)]
_Format = Annotated[str | dict[str, Any] | None, one_of('"json" or a schema')]
_Think = Annotated[bool | str | None, one_of("true, false, low, medium or high")]


class OllamaBody(ConversationBody):
    """What Ollama's two routes have in common; the fields beside its own are those of the other routes."""

    stream: Annotated[bool, BeforeValidator(_streamed)] = True
    """Left out: true, unlike in the other routes."""
    format: _Format = None
    options: Annotated[dict[str, Any] | None, at_most(64)] = None
    think: _Think = None
    keep_alive: KeepAlive = None
    """How long the model stays loaded afterwards, where the server has several."""
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def own_name(self, field: str | None) -> str | None:
        """As for every request, with the names of this route."""
        own = super().own_name(field)
        if own == "structured_outputs" and self.format:
            return "format"
        options = self.options or {}
        named = next((name for name, inner in _INNER.items() if inner == own and name in options), own)
        return f"options.{named}" if named in options else own

    def shared_fields(self) -> dict[str, Any]:
        """The fields of a chat, but for its messages and tools.

        Raises:
            RequestError: an option, or the format, is none.
        """
        fields = dict(self._option_fields())
        variables: dict[str, Any] = {}
        if self.think is not None:
            variables["enable_thinking"] = bool(self.think)
            if isinstance(self.think, str):
                variables["reasoning_effort"] = self.think
        if isinstance(self.format, Mapping):
            fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": self.format}}
        elif self.format == "json":
            fields["response_format"] = {"type": "json_object"}
        elif self.format:
            raise RequestError(f"format is {self.format!r:.40}; give json or a schema.", "format")
        return fields | {
            "chat_template_kwargs": variables or None,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
        }

    @property
    def context_bound(self) -> int | None:
        """Tokens that prompt and answer may have together, beside the server's own bound; None: no others.

        Raises:
            RequestError: it is no number of tokens.
        """
        value = (self.options or {}).get("num_ctx")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
            raise RequestError(f"options.num_ctx is {value!r:.40}; give a number of tokens.", "options.num_ctx")
        return int(value)

    def _option_fields(self) -> Iterator[tuple[str, Any]]:
        for name, value in (self.options or {}).items():
            if value is None or name in _ENGINES or name == "num_ctx":
                continue
            # Go's decoder takes 40.0 for an integer, and so do clients' settings.
            whole = int(value) if isinstance(value, float) and value.is_integer() and name in _WHOLE else value
            yield _INNER.get(name, name), -1 if name == "num_predict" and whole == _FOREVER else whole


_WHOLE = ("num_predict", "top_k", "seed", "repeat_last_n")


class OllamaChatBody(OllamaBody):
    """``POST /api/chat``."""

    model_config = ConfigDict(extra="allow")

    messages: ListOf[dict[str, Any]] = Field(default_factory=list)
    """None: the model is loaded, or unloaded if ``keep_alive`` is 0."""
    tools: ListOf[dict[str, Any]] | None = None

    def as_chat(self) -> ChatBody:
        """See ``ConversationBody``."""
        return self.chat(
            {**self.shared_fields(), "messages": list(_messages(self.messages)), "tools": self.tools or None}
        )


class OllamaGenerateBody(OllamaBody):
    """``POST /api/generate``."""

    model_config = ConfigDict(extra="allow")

    prompt: str | None = None
    """None: the model is loaded, or unloaded if ``keep_alive`` is 0."""
    suffix: str | None = None
    """What stands behind the text that is filled in."""
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    """true: the prompt is read as it is, without the model's template."""
    context: ListOf[int] | None = None
    """What an earlier reply gave, to go on from."""
    images: ListOf[str] | None = None

    def as_chat(self) -> ChatBody:
        """See ``ConversationBody``."""
        if self.template:
            raise RequestError("template is given; the model's own is used, so leave it out or ask raw.", "template")
        if self.images:
            raise RequestError("images is given; texts are all that this model reads, so leave it out.", "images")
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": self.prompt or ""}]
        return self.chat({**self.shared_fields(), "messages": messages})


class OllamaShowBody(Body):
    """``POST /api/show``."""

    model: str | None = Field(default=None, max_length=500)
    name: str | None = Field(default=None, max_length=500)
    """``model``, by its former name."""
    verbose: bool | None = None


def _messages(given: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages of a chat."""
    for index, message in enumerate(given):
        where = f"messages.{index}"
        if message.get("images"):
            raise RequestError(f"{where} holds images; texts are all that this model reads, so leave them out.", where)
        told: dict[str, Any] = {"role": message.get("role"), "content": message.get("content") or ""}
        if message.get("thinking"):
            told["reasoning_content"] = message["thinking"]
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            told["tool_calls"] = [_call(call, where, place) for place, call in enumerate(calls)]
        for name in ("tool_name", "tool_call_id", "name"):
            if isinstance(message.get(name), str):
                told["name" if name == "tool_name" else name] = message[name]
        yield told


def _call(call: Any, where: str, place: int) -> dict[str, Any]:
    match call:
        case {"function": {"name": str(name)} as function}:
            arguments = function.get("arguments") or {}
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            call_id = call.get("id") if isinstance(call.get("id"), str) else f"call_{place}"
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    raise RequestError(f"{where} holds a tool call without a function's name; name it.", where)
