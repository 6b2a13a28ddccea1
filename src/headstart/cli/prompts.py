"""The prompts to answer: the one on the command line, or each line of a prompts file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.errors import RequestError
from headstart.text.prompt_lines import FORMS, PromptLine, parse_lines, read_lines

if TYPE_CHECKING:
    from headstart.entrypoints.llm import LLM
    from headstart.entrypoints.outline import Outline
    from headstart.entrypoints.prompts import EncodedPrompt

STDIN = "-"
LABELS = ("id", "category")
"""Fields of a line that are copied to its answers."""
BESIDE = ("decoder_prompt", "src_lang", "tgt_lang")
"""What may stand beside the prompt of a model with an encoder."""


@dataclass
class Conversation:
    """A prompt, or a chat with one or more user turns that are answered one after the other."""

    line: int | None = None
    """Of the prompts file, from 1."""
    labels: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    """A plain prompt; None where it is a chat."""
    decoder_prompt: str | None = None
    """What the output begins with, where the model has an encoder, which reads the prompt."""
    src_lang: str | None = None
    """Language of the prompt, of a model that translates."""
    tgt_lang: str | None = None
    """Language of the output."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """A chat so far."""
    turns: list[str] | None = None
    """The user's messages in order; None if the line has no ``turns``."""
    error: str | None = None
    """Why it cannot be answered, as one sentence that names the line."""

    @property
    def num_answers(self) -> int:
        return 1 if self.turns is None else len(self.turns)

    def request(self, llm: LLM | Outline, turn: int) -> EncodedPrompt:
        """What the target continues in this turn.

        Raises:
            RequestError: the model cannot read it.
        """
        if self.prompt is not None:
            beside = {name: getattr(self, name) for name in BESIDE if getattr(self, name) is not None}
            return llm.encode({"encoder_prompt": self.prompt, **beside} if beside else self.prompt)
        if self.turns is not None:
            self.messages.append({"role": "user", "content": self.turns[turn]})
        return llm.encode_chat(self.messages)

    def answered(self, text: str) -> None:
        """Add the answer to the chat."""
        if self.turns is not None:
            self.messages.append({"role": "assistant", "content": text})


def one_prompt(prompt: str, chat: bool, system: str | None) -> Conversation:
    """The prompt of the command line, "-" for what stdin holds.

    Raises:
        RequestError: stdin is not UTF-8.
    """
    return _from_prompt(read_stdin() if prompt == STDIN else prompt, chat, system)


def read_stdin() -> str:
    """What stdin holds, without its last newline.

    Raises:
        RequestError: it is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"the prompt on stdin is not UTF-8 ({error.reason} at byte {error.start}).") from error


def read_prompts(path: str, chat: bool, system: str | None) -> list[Conversation]:
    """Every line of a prompts file ("-": of stdin); a bad line is a conversation with an error.

    A line (``text.prompt_lines``) asks in exactly one form: ``prompt`` or ``question`` is a text (with ``chat`` a
    user's message), ``messages`` a chat, and each of ``turns`` is answered before the next. A text may have
    ``decoder_prompt``, ``src_lang`` and ``tgt_lang`` beside it.

    Raises:
        ConfigError: the file cannot be read, or has no line.
    """
    lines = parse_lines(sys.stdin.buffer.read(), "the prompts file stdin") if path == STDIN else read_lines(Path(path))
    return [_from_line(line, chat, system) for line in lines]


def _from_line(line: PromptLine, chat: bool, system: str | None) -> Conversation:
    try:
        if line.error is not None:
            raise RequestError(line.error)
        conversation = _conversation(line, chat, system)
    except RequestError as error:
        conversation = Conversation(error=f"line {line.number} {error}")
    conversation.line = line.number
    for name in BESIDE if conversation.prompt is not None else ():
        value = line.fields.get(name)
        if isinstance(value, str):
            setattr(conversation, name, value)
        elif value is not None:
            conversation.error = f"line {line.number} has a {name} that is no text; give a text."
    conversation.labels = {name: line.fields[name] for name in LABELS if name in line.fields}
    return conversation


def _conversation(line: PromptLine, chat: bool, system: str | None) -> Conversation:
    if len(line.forms) != 1:
        raise RequestError(f"has {' and '.join(line.forms) or 'nothing to answer'}; give one of {', '.join(FORMS)}.")
    if line.forms == ["messages"]:
        given = line.messages()
        has_system = isinstance(given[0], dict) and given[0].get("role") == "system"
        return Conversation(messages=[*([] if has_system else _system(system)), *given])
    texts = line.texts()
    if line.forms == ["turns"]:
        return Conversation(messages=_system(system), turns=texts)
    return _from_prompt(texts[0], chat, system)


def _from_prompt(prompt: str, chat: bool, system: str | None) -> Conversation:
    if not chat:
        return Conversation(prompt=prompt)
    return Conversation(messages=[*_system(system), {"role": "user", "content": prompt}])


def _system(text: str | None) -> list[dict[str, Any]]:
    return [] if text is None else [{"role": "system", "content": text}]
