"""Files of prompts, one JSON object a line: the one reader of such lines. What is made of them is each command's own.

A line asks in one of four forms: ``messages`` (a conversation, as the OpenAI API has them), ``turns`` (texts that a
user says one after the other), ``prompt`` or ``question`` (a text). All other fields are left to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError, RequestError

FORMS = ("messages", "turns", "prompt", "question")
"""Fields that ask something; the first of them counts where a line has several."""


@dataclass(frozen=True)
class PromptLine:
    """One line of a file of prompts."""

    number: int
    """In the file, from 1."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why it is no JSON object, to be put behind "line 3"; there are no fields then."""

    @property
    def forms(self) -> list[str]:
        """Those of FORMS that it has."""
        return [form for form in FORMS if form in self.fields]

    def messages(self) -> list[Any]:
        """The conversation of ``messages``, at least one; what a message may hold is the chat template's business.

        Raises:
            RequestError: they are no such list.
        """
        return self._list("messages")

    def texts(self) -> list[str]:
        """What the user says one after the other: all of ``turns``, else the one ``prompt`` or ``question``.

        Raises:
            RequestError: it has none of them, or one that is no text.
        """
        if "turns" in self.fields:
            turns = self._list("turns")
            if not all(isinstance(turn, str) for turn in turns):
                raise RequestError("has a turn that is no text; give a list of texts.")
            return turns
        for form in ("prompt", "question"):
            if form in self.fields:
                text = self.fields[form]
                if not isinstance(text, str):
                    raise RequestError(f"has a {form} that is {_kind(text)}; give a text.")
                return [text]
        raise RequestError(f"has nothing to answer; give one of {', '.join(FORMS)}.")

    def _list(self, form: str) -> list[Any]:
        given = self.fields[form]
        if not isinstance(given, list) or not given:
            raise RequestError(f"has {form} that are {_kind(given)}; give a list of at least one.")
        return given


def read_lines(path: Path) -> list[PromptLine]:
    """The lines of a file; empty ones are passed over.

    Raises:
        ConfigError: the file cannot be read, or has no line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the prompts file {path} cannot be read: {error.strerror}.") from error
    return parse_lines(content, f"the prompts file {path}")


def parse_lines(content: bytes, name: str) -> list[PromptLine]:
    """The lines of a file's content (UTF-8, a byte order mark allowed); a line that is no object says so.

    Raises:
        ConfigError: there is no line; ``name`` says where.
    """
    lines = enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
    parsed = [_parse(number, line) for number, line in lines if line.strip()]
    if not parsed:
        raise ConfigError(f"{name} is empty; give one JSON object a line.")
    return parsed


def _parse(number: int, line: bytes) -> PromptLine:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return PromptLine(number, error=f"is not UTF-8 ({error.reason}); give one JSON object a line.")
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        return PromptLine(number, error=f"is not JSON ({reason}); give one JSON object a line.")
    if not isinstance(value, dict):
        return PromptLine(number, error=f"is {_kind(value)}; give an object with {', '.join(FORMS)}.")
    return PromptLine(number, value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return "an empty list" if value == [] else names.get(type(value), "a number")
