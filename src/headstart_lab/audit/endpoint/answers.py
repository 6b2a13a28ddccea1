"""What a server's replies say, in one form, whichever server it is: whole ones and streams, chats and completions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS = "chat", "completions"
_ABSURD = 100.0
"""A log-probability that no rounding explains, and whose exponential may be no number."""
_ID = "token_id:"
"""How vLLM and Headstart spell tokens for ``return_tokens_as_token_ids``."""


class WrongForm(ValueError):
    """A reply is not of OpenAI's form: what of it."""


class BrokenStream(ValueError):
    """A stream does not end as it should: how."""


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


def whole_answer(reply: Any, api: str) -> Answer:
    """What a reply that came at once says.

    Raises:
        WrongForm: it has another form than OpenAI's.
    """
    choices = [(_index(choice, place), choice) for place, choice in enumerate(_choices(reply))]
    ordered = [_choice(choice, api) for _, choice in sorted(choices, key=lambda each: each[0])]
    if not ordered:
        raise WrongForm("there is no choice")
    return _answer(ordered, reply.get("usage"))


def streamed_answer(text: str, api: str) -> Answer:
    """What a stream says, its pieces put together.

    Raises:
        WrongForm: a piece has another form than OpenAI's, or there is none.
        BrokenStream: it tells of an error, or does not end.
    """
    grown: dict[int, list[Mapping[str, Any]]] = {}
    usage, ended = None, False
    # Not by splitlines(): texts may hold what Unicode calls the end of a line.
    for line in text.split("\n"):
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            ended = True
            continue
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise WrongForm(f"a piece of a stream is no JSON: {error}") from error
        if isinstance(chunk, dict) and chunk.get("error"):
            raise BrokenStream(f"broke off a stream: {message_of(data)}")
        # A piece that tells of usage alone may lack choices.
        if not isinstance(chunk, dict) or not chunk.get("usage"):
            told = _choices(chunk)
        else:
            usage = chunk["usage"]
            told = _choices({"choices": [], **chunk})
        for choice in told:
            grown.setdefault(_index(choice, 0), []).append(choice)
    if not ended:
        raise BrokenStream("ended a stream without [DONE].")
    if not grown:
        raise WrongForm("a stream has no choice")
    return _answer([_grown(grown[index], api) for index in sorted(grown)], usage)


def message_of(text: str) -> str:
    """The words of an error reply, on one line."""
    try:
        told = json.loads(text)
        told = told.get("error", told) if isinstance(told, dict) else told
        words = str(told.get("message", told) if isinstance(told, dict) else told)
    except ValueError:
        words = text
    # A terminal obeys some of what is not printable.
    return "".join(filter(str.isprintable, " ".join(words.split())))[:300]


def _choices(reply: Any) -> list[Mapping[str, Any]]:
    if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
        raise WrongForm("there is no list of choices")
    return [_object(choice, "a choice") for choice in reply["choices"]]


def _index(choice: Mapping[str, Any], place: int) -> int:
    """A choice's number; ``place`` where it says none."""
    index = choice.get("index")
    if index is None:
        return place
    if not isinstance(index, int):
        raise WrongForm(f"index is {index!r}")
    return index


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WrongForm(f"{name} is {_kind(value)}, no object")
    return value


def _list(value: Any, name: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise WrongForm(f"{name} is {_kind(value)}, no list")
    return value or ()


def _text(value: Any, name: str) -> str:
    """A text; null is an empty one."""
    if value is not None and not isinstance(value, str):
        raise WrongForm(f"{name} is {_kind(value)}, no text")
    return value or ""


def _kind(value: Any) -> str:
    return {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
    }.get(type(value), "an object")


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(f"{name}_tokens")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise WrongForm(f"{name}_tokens of usage is {_kind(value)}, no whole number")
    return value


def _answer(choices: Sequence[Choice], usage: Any) -> Answer:
    counts = {} if usage is None else _object(usage, "usage")
    return Answer(tuple(choices), *(_count(counts, name) for name in ("prompt", "completion", "total")))


def _reason(choice: Mapping[str, Any]) -> str | None:
    return _text(choice.get("finish_reason"), "finish_reason") or None


def _choice(choice: Mapping[str, Any], api: str) -> Choice:
    message = _object(choice.get("message"), "message") if api == CHAT else {"content": choice.get("text")}
    calls = [
        (_text(called.get("name"), "a tool's name"), _text(called.get("arguments"), "a tool's arguments"))
        for call in _list(message.get("tool_calls"), "tool_calls")
        for called in [_object(_object(call, "a tool call").get("function"), "function")]
    ]
    positions = _positions([choice.get("logprobs")], api)
    return Choice(_text(message.get("content"), "content"), _reason(choice), positions, tuple(calls))


def _grown(chunks: Sequence[Mapping[str, Any]], api: str) -> Choice:
    pieces = [
        _object(chunk.get("delta") or {}, "delta") if api == CHAT else {"content": chunk.get("text")}
        for chunk in chunks
    ]
    reasons = [reason for chunk in chunks if (reason := _reason(chunk))]
    calls: dict[int, list[str]] = {}
    for piece in pieces:
        for place, call in enumerate(_list(piece.get("tool_calls"), "tool_calls")):
            part, told = calls.setdefault(_index(_object(call, "a tool call"), place), ["", ""]), call.get("function")
            for i, name in enumerate(("name", "arguments")):
                part[i] += _text(_object(told or {}, "function").get(name), f"a tool's {name}")
    return Choice(
        "".join(_text(piece.get("content"), "content") for piece in pieces),
        reasons[-1] if reasons else None,
        _positions([chunk.get("logprobs") for chunk in chunks], api),
        tuple((name, arguments) for _, (name, arguments) in sorted(calls.items())),
    )


def _positions(told: Sequence[Any], api: str) -> tuple[Position, ...] | None:
    """None: no log-probability was given."""
    positions: list[Position] = []
    try:
        for each in told:
            if each:
                positions += _chat_positions(each) if api == CHAT else _completion_positions(each)
    except WrongForm:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WrongForm(f"logprobs: {type(error).__name__}: {error}") from error
    return tuple(positions) or None


def _logprob(value: Any) -> float:
    if not isinstance(value, int | float) or math.isnan(value):
        raise WrongForm(f"a log-probability is {'NaN' if isinstance(value, float) else _kind(value)}, no number")
    if value > _ABSURD:
        raise WrongForm(f"a log-probability is {value:.3g}, far above 0")
    return float(value)


def _chat_positions(told: Mapping[str, Any]) -> list[Position]:
    def listed(entry: Mapping[str, Any]) -> Listed:
        spelt, raw = str(entry["token"]), entry.get("bytes")
        text = spelt if raw is None else bytes(_list(raw, "bytes")).decode(errors="replace")
        key = str(entry["id"]) if isinstance(entry.get("id"), int) else spelt.removeprefix(_ID)
        return Listed(key, text, _logprob(entry["logprob"]))

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
            Listed(token.removeprefix(_ID), token, _logprob(logprob)),
            _best_first(Listed(key.removeprefix(_ID), key, _logprob(value)) for key, value in (top or {}).items()),
        )
        for token, logprob, top in zip(told["tokens"], told["token_logprobs"], tops, strict=True)
        if logprob is not None
    ]


def _best_first(listed: Iterable[Listed]) -> tuple[Listed, ...]:
    """Sorted; entries of one key are one token's, or cannot be told apart: their probabilities are added."""
    merged: dict[str, Listed] = {}
    for each in listed:
        if (known := merged.get(each.key)) is not None:
            total = math.exp(known.logprob) + math.exp(each.logprob)
            each = Listed(each.key, each.text, math.log(total) if total > 0 else known.logprob)
        merged[each.key] = each
    return tuple(sorted(merged.values(), key=lambda each: -each.logprob))
