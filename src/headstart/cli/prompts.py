"""What is to be answered: one prompt of the command line, or each line of a prompts file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from headstart.llm import LLM
    from headstart.request import EncodedPrompt

STDIN = "-"
FORMS = ("prompt", "messages", "turns")
LABELS = ("id", "category")
"""Fields of a line that come back with its answers."""


@dataclass
class Conversation:
    """A prompt, or a chat with one or more user turns that are answered one after the other."""

    line: int | None = None
    """Of the prompts file, from 1."""
    labels: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    """A plain prompt; None where it is a chat."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """A chat so far."""
    turns: list[str] | None = None
    """What the user says one after the other; None where the line gives no turns."""
    error: str | None = None
    """Why it cannot be answered, as one sentence that names the line."""

    @property
    def num_answers(self) -> int:
        return 1 if self.turns is None else len(self.turns)

    def request(self, llm: LLM, turn: int) -> EncodedPrompt:
        """What the target is to go on from in this turn.

        Raises:
            RequestError: the model cannot read it.
        """
        if self.prompt is not None:
            return llm.encode(self.prompt)
        if self.turns is not None:
            self.messages.append({"role": "user", "content": self.turns[turn]})
        return llm.encode_chat(self.messages)

    def answered(self, text: str) -> None:
        """The answer becomes part of the chat."""
        if self.turns is not None:
            self.messages.append({"role": "assistant", "content": text})


def one_prompt(prompt: str, chat: bool, system: str | None) -> Conversation:
    """The prompt of the command line, "-" for what stdin holds (less the newline at its end).

    Raises:
        RequestError: stdin is not UTF-8.
    """
    if prompt == STDIN:
        try:
            prompt = sys.stdin.buffer.read().decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise RequestError(f"the prompt on stdin is not UTF-8 ({error.reason} at byte {error.start}).") from error
    return _from_prompt(prompt, chat, system)


def read_prompts(path: str, chat: bool, system: str | None) -> list[Conversation]:
    """Every line of a prompts file ("-": of stdin); a bad line is a conversation with an error.

    A line is a JSON object with ``prompt`` (a text; with ``chat`` a user's message), ``messages`` (a chat, as the
    OpenAI API has them) or ``turns`` (texts that a user says one after the other). Empty lines are passed over.

    Raises:
        ConfigError: the file cannot be read, or has no line.
    """
    name = "stdin" if path == STDIN else path
    try:
        content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the prompts file {name} cannot be read: {error.strerror}.") from error
    lines = enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
    conversations = [_from_line(number, line, chat, system) for number, line in lines if line.strip()]
    if not conversations:
        raise ConfigError(f"the prompts file {name} is empty; give one JSON object a line.")
    return conversations


def _from_line(number: int, line: bytes, chat: bool, system: str | None) -> Conversation:
    labels: dict[str, Any] = {}
    try:
        value = _json(line)
        if not isinstance(value, dict):
            raise RequestError(f"is {_kind(value)}; give an object with prompt, messages or turns.")
        labels = {name: value[name] for name in LABELS if name in value}
        conversation = _from_object(value, chat, system)
    except RequestError as error:
        conversation = Conversation(error=f"line {number} {error}")
    conversation.line, conversation.labels = number, labels
    return conversation


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise RequestError(f"is not JSON ({reason}); give one JSON object a line.") from error


def _from_object(value: dict[str, Any], chat: bool, system: str | None) -> Conversation:
    forms = [form for form in FORMS if form in value]
    if len(forms) != 1:
        raise RequestError(f"has {' and '.join(forms) or 'nothing to answer'}; give one of {', '.join(FORMS)}.")
    form = forms[0]
    given = value[form]
    if form == "prompt":
        if not isinstance(given, str):
            raise RequestError(f"has a prompt that is {_kind(given)}; give a text.")
        return _from_prompt(given, chat, system)
    if not isinstance(given, list) or not given:
        raise RequestError(f"has {form} that are {_kind(given)}; give a list of at least one.")
    if form == "messages":
        has_system = isinstance(given[0], dict) and given[0].get("role") == "system"
        return Conversation(messages=[*([] if has_system else _system(system)), *given])
    if not all(isinstance(turn, str) for turn in given):
        raise RequestError("has a turn that is no text; give a list of texts.")
    return Conversation(messages=_system(system), turns=given)


def _from_prompt(prompt: str, chat: bool, system: str | None) -> Conversation:
    if not chat:
        return Conversation(prompt=prompt)
    return Conversation(messages=[*_system(system), {"role": "user", "content": prompt}])


def _system(text: str | None) -> list[dict[str, Any]]:
    return [] if text is None else [{"role": "system", "content": text}]


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return "an empty list" if value == [] else names.get(type(value), "a number")
