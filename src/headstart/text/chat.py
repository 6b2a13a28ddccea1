"""From messages to the prompt that a chat model was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.errors import CheckpointError, RequestError, require_utf8
from headstart.models.checkpoint import Checkpoint
from headstart.models.files import read_text, require_file
from headstart.text.directory_tokenizer import directory_special_tokens, read_settings
from headstart.text.gguf_tokenizer import gguf_special_tokens
from headstart.text.template_files import GGUF_KEY, TEMPLATE_FILE, TEMPLATE_FOLDER, given_template
from headstart.text.template_process import PROCESSES, TemplateFailure

DEFAULT, _TOOL_USE = "default", "tool_use"
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""What templates call a message's thought; who gives one of them gives all: the template shows what it wants."""
_CONTINUED = "\ue000continued\ue001"
"""Marks the end of a message that is continued while it is rendered: what follows it may well repeat the message."""


class ChatTemplate:
    """A model's chat template: a Jinja program that its files bring along, run in a sandbox (``text.sandbox``) in a
    process of its own (``text.template_process``)."""

    def __init__(
        self,
        templates: str | Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        name: str = "",
        response_template: Mapping[str, Any] | None = None,
    ) -> None:
        """``templates``: one, or several by name ("default", "tool_use"); none for a model that does not chat.
        ``special_tokens``: role ("bos_token", ...) -> spelling, which templates may use. ``name``: the model's.
        ``response_template``: how its answers are to be read.
        """
        self._templates = {DEFAULT: templates} if isinstance(templates, str) else dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._name = name
        self.response_template = response_template
        """How its answers are to be read, by the model's own files (transformers' form); None: they do not say."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, given: str | Path | None = None) -> ChatTemplate:
        """The chat template of a model, without templates where it has none.

        ``given``: a template to use in place of the model's own, or the file that holds it.

        Raises:
            CheckpointError: a file of it is damaged.
            ConfigError: what is given is not there.
        """
        own = None if given is None else given_template(given)
        if checkpoint.kind == "gguf":
            special = gguf_special_tokens(checkpoint.metadata)
            return cls(gguf_templates(checkpoint.metadata) if own is None else own, special, checkpoint.name)
        settings = read_settings(checkpoint.path)
        templates = _directory_templates(checkpoint.path, settings) if own is None else own
        answers = settings.get("response_template")
        answers = answers if isinstance(answers, dict) else None
        return cls(templates, directory_special_tokens(settings), checkpoint.name, answers)

    @property
    def available(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._templates)

    @property
    def default(self) -> str | None:
        """The template's own text; None: the model has none."""
        return self._templates.get(DEFAULT)

    @property
    def source(self) -> str:
        """The text of all templates."""
        return "\n".join(self._templates.values())

    @property
    def knows_tools(self) -> bool:
        """Whether ``tools`` show in what is rendered."""
        return _TOOL_USE in self._templates or bool(re.search(r"\btools\b", self._templates.get(DEFAULT, "")))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation. Encode it with ``add_special_tokens=False``: it brings its own.

        ``messages``: each has a "role" and a "content": a string, a list of text parts as the OpenAI API has them (they
        are joined by newlines), or None beside "tool_calls"; what these pass to a function may be JSON text or an
        object. ``tools``: JSON schemas of functions.
        ``add_generation_prompt``: end with what begins an answer; left out, that is so unless the final message is
        continued. ``continue_final_message``: end where the text of the last message ends, so that the answer goes on
        with it. ``variables``: what else the template knows.

        Raises:
            RequestError: the model has no template, or the template refuses or cannot render these messages.
        """
        template = self._choose(tools)
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message is given beside add_generation_prompt, which begins another message; keep one "
                "of them.",
                "continue_final_message",
            )
        plain = {
            "messages": [_message(message, index) for index, message in enumerate(_list("messages", messages))],
            "tools": None if tools is None else _plain(_list("tools", tools), "tools"),
            "documents": None,
            "add_generation_prompt": not continue_final_message and add_generation_prompt is not False,
            **self._special_tokens,
            **{key: _plain(value, key) for key, value in (variables or {}).items()},
        }
        if not plain["messages"]:
            raise RequestError("messages is empty; give at least one message.", "messages")
        if continue_final_message:
            plain["messages"][-1]["content"] += _CONTINUED

        try:
            rendered = PROCESSES.render(template, plain)
        except TemplateFailure as error:
            raise RequestError(f"the chat template cannot render these messages: {error}.", "messages") from error
        if not continue_final_message:
            return rendered
        until_mark, mark, _ = rendered.rpartition(_CONTINUED)
        if not mark:
            raise RequestError(
                "continue_final_message is given, but the chat template does not show the last message's text.",
                "continue_final_message",
            )
        return until_mark

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        template = self._templates.get(_TOOL_USE) if tools else None
        template = template or self._templates.get(DEFAULT)
        if template is None:
            of = f"model {self._name!r}" if self._name else "this model"
            if self._templates:
                raise RequestError(
                    f"{of} has chat templates for special uses only ({', '.join(self._templates)}); give tools with "
                    "the messages where it has tool_use, or a plain prompt.",
                    "messages",
                )
            raise RequestError(f"{of} has no chat template; give a plain prompt instead of messages.", "messages")
        return template


def gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Name -> template of a GGUF file.

    Raises:
        CheckpointError: one of them is no text.
    """
    found = {name: value for name, value in metadata.items() if name == GGUF_KEY or name.startswith(f"{GGUF_KEY}.")}
    for name, value in found.items():
        if not isinstance(value, str):
            raise CheckpointError(
                f"{name} is of type {type(value).__name__}; it must be a text, convert the file again."
            )
    return {name.removeprefix(GGUF_KEY).removeprefix(".") or DEFAULT: value for name, value in found.items()}


def _directory_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Those of template files where there are any, else of tokenizer_config.json, as transformers has it."""
    templates = _named_templates(settings.get("chat_template"), source=str(directory))
    named = {path.stem: path for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja"))}
    own = directory / TEMPLATE_FILE
    files = ({DEFAULT: own} if own.exists() else {}) | named
    if not files:
        return templates
    default = {DEFAULT: templates[DEFAULT]} if DEFAULT in templates else {}
    for path in files.values():
        require_file(path)
        _require_own(path, directory)
    return default | {name: read_text(path) for name, path in files.items()}


def _require_own(path: Path, directory: Path) -> None:
    """Refuse a template that is a link to some file of this machine: a server shows its template to whoever asks.

    Links to templates are what they say, and the hub's cache links to its blobs, which have no names.
    """
    home, file = directory.resolve(), path.resolve()
    own = home.parent.parent if home.parent.name == "snapshots" else home
    if file.suffix != path.suffix and not file.is_relative_to(own):
        raise CheckpointError(f"{path} is a link to {file}, outside the model's folder; put the template itself there.")


def _named_templates(value: Any, source: str) -> dict[str, str]:
    """``chat_template`` of tokenizer_config.json: absent, one template, or named ones in a list or dictionary."""
    match value:
        case None:
            return {}
        case str():
            return {DEFAULT: value}
        case dict():
            pairs = list(value.items())
        case list() if all(isinstance(item, dict) for item in value):
            pairs = [(item.get("name"), item.get("template")) for item in value]
        case _:
            pairs = [(None, None)]
    if not all(isinstance(part, str) for pair in pairs for part in pair):
        raise CheckpointError(
            f"{source}: chat_template of tokenizer_config.json is neither a template nor named ones in a list or "
            "dictionary; fetch it again."
        )
    return dict(pairs)


def _list(field: str, value: Any) -> Sequence[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise RequestError(f"{field} is of type {type(value).__name__}; give a list of objects.", field)
    return value


def _message(message: Any, index: int) -> dict[str, Any]:
    """A message as plain data, its content one text."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is of type {type(message).__name__}; give an object with role and content.", where)
    plain: dict[str, Any] = _plain(message, where)
    role = plain.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role is {role!r}; give a role such as 'user'.", f"{where}.role")
    thought = next((plain[name] for name in _THOUGHTS if isinstance(plain.get(name), str)), None)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_text_part(part, f"{where}.content[{at}]") for at, part in enumerate(content))
    elif content is None and (plain.get("tool_calls") or thought is not None):
        # The API says None where a call is all there is; templates add texts up.
        plain["content"] = ""
    elif content is None:
        raise RequestError(f"{where}.content is missing; give a text.", f"{where}.content")
    elif not isinstance(content, str):
        raise RequestError(
            f"{where}.content is of type {type(content).__name__}; give a text or a list of text parts.",
            f"{where}.content",
        )
    calls = plain.get("tool_calls")
    if thought is not None:
        # gpt-oss' template takes no text beside a thought and a call.
        names = _THOUGHTS[:2] if calls and plain["content"] else _THOUGHTS
        plain |= dict.fromkeys(names, thought)
    for call in calls if isinstance(calls, list) else ():
        _open_arguments(call)
    return plain


def _open_arguments(call: Any) -> None:
    """A call's arguments as an object: the API has them as JSON text, which templates would quote once more."""
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                arguments = json.loads(text)
            except (ValueError, RecursionError):
                return
            if isinstance(arguments, dict):
                function["arguments"] = _plain(arguments, "function.arguments")


def _text_part(part: Any, where: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise RequestError(f"{where} is not a text part; give {{'type': 'text', 'text': ...}}.", where)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy that consists of JSON types only, so that a template meets nothing that can act."""
    if depth > 50:
        raise RequestError(f"{where} is nested more than 50 levels deep; flatten it.", where)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        require_utf8(value, where)
        return str.__str__(value)  # less whatever a subclass adds
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item, where, depth + 1) for item in value]
    raise RequestError(f"{where} holds a {type(value).__name__}; give JSON values.", where)
