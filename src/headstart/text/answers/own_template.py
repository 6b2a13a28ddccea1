"""Reads answers by a model's own ``response_template``, with transformers' parser of such templates."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from headstart.errors import ConfigError
from headstart.text.answers.events import Arguments, CallBegun, CallEnded, Event, Text, Thought, merged
from headstart.text.answers.reader import Stripped
from headstart.text.answers.tools import Tools, fresh_id

_SECONDS = 0.2
"""That a template's expression may take for one piece of an answer."""
_PIECE = 64
"""Characters that are read at once: of a piece that cannot be read all is text."""
_THOUGHTS = ("thinking", "reasoning_content", "reasoning")
_CALLS = "tool_calls"
_log = logging.getLogger(__name__)


class _Bounded:
    """An expression that is given up where it takes too long: templates come with models."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern

    def search(self, text: str, at: int = 0, partial: bool = False) -> Any:
        return self._pattern.search(text, at, partial=partial, timeout=_SECONDS)

    def finditer(self, text: str) -> Iterable[Any]:
        return self._pattern.finditer(text, timeout=_SECONDS)  # type: ignore[no-any-return]


def loaded(template: Mapping[str, Any]) -> Any:
    """A template that is ready to be followed.

    Raises:
        ConfigError: transformers is missing or too old, or the template is wrong.
    """
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template
    except ImportError as error:
        raise ConfigError(
            "this model's response_template needs transformers 5.23 or newer; install headstart[server], or name "
            "another tool_parser."
        ) from error
    try:
        spec = load_response_template(dict(template))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"this model's response_template is wrong: {error}.") from error
    spec.start_anchor_re = _Bounded(spec.start_anchor_re)
    for field in spec.fields.values():
        field.open_re = None if field.open_re is None else _Bounded(field.open_re)
        field.close_re = None if field.close_re is None else _Bounded(field.close_re)
    return spec


class TemplateReader:
    """Reads one answer, with the interface of ``AnswerReader``. A call is told when it is whole.

    Args:
        template: as ``loaded``.
        prompt: its end shows where the answer begins.
        tools: what may be called; a call of another function stays text.
        parallel: False: of several calls only the first one counts.
    """

    def __init__(self, template: Any, prompt: str, tools: Tools, parallel: bool = True) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        schemas = [
            {"type": "function", "function": {"name": name, "parameters": dict(schema or {})}}
            for name, schema in tools.schemas.items()
        ]
        self._tools = tools
        self._parallel = parallel
        self.called = 0
        self.broken = 0
        self.thoughts: list[tuple[int, int]] = []
        self._raw: list[str] = []
        self._out: list[Event] = []
        self._text = self._thought = Stripped(self._out_text)
        self._parser: Any = None
        try:
            self._parser = ResponseParser(template, prefix=prompt, tools=schemas)
            for event in self._parser.initial_events:
                self._note(event)
        except (ValueError, KeyError, TimeoutError):
            self._fail()

    def feed(self, piece: str) -> list[Event]:
        """As ``AnswerReader.feed``."""
        if self._parser is None:
            return [Text(piece)] if piece else []
        try:
            return self._told(self._parser.feed(piece))
        except (ValueError, KeyError, TimeoutError, RecursionError):
            return self._fail(piece)

    def finish(self) -> list[Event]:
        """As ``AnswerReader.finish``."""
        if self._parser is None:
            return []
        try:
            return self._told(self._parser.finalize()[1])
        except (ValueError, KeyError, TimeoutError, RecursionError):
            return self._fail()

    def all(self, text: str) -> list[Event]:
        """As ``AnswerReader.all``."""
        pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        return merged([*(event for piece in pieces for event in self.feed(piece)), *self.finish()])

    def _fail(self, piece: str = "") -> list[Event]:
        """What the template cannot read is text, and so is all that follows."""
        _log.warning("an answer cannot be read by the model's response_template; it stays text.")
        self._parser = None
        self.broken += 1
        raw, self._raw = "".join(self._raw) + piece, []
        return [Text(raw)] if raw else []

    def _told(self, events: Iterable[Mapping[str, Any]]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found += self._note(event)
        return merged(found)

    def _note(self, event: Mapping[str, Any]) -> list[Event]:
        field, kind = event["field"], event["type"]
        text = event.get("text", "")
        if kind == "region_open":
            self._raw, self._thought = [], Stripped(self._out_thought)
        elif kind == "region_chunk" and field == _CALLS:
            self._raw.append(text)
        elif kind == "region_chunk":
            (self._thought if field in _THOUGHTS else self._text).say(text)
            said, self._out = self._out, []
            return said
        elif field == _CALLS:
            raw, self._raw = "".join(self._raw), []
            value = event["value"]
            calls = value if isinstance(value, list) else [value]
            return [event for call in calls for event in self._call(call, raw)]
        return []

    def _out_text(self, text: str) -> None:
        self._out.append(Text(text))

    def _out_thought(self, text: str) -> None:
        self._out.append(Thought(text))

    def _call(self, value: Any, raw: str) -> list[Event]:
        function = value.get("function", value) if isinstance(value, dict) else {}
        name, arguments = function.get("name"), function.get("arguments", function.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        if not isinstance(name, str) or name not in self._tools or not isinstance(arguments, dict):
            self.broken += 1
            return [Text(raw)]
        if self.called and not self._parallel:
            return []
        index, self.called = self.called, self.called + 1
        text = json.dumps(arguments, ensure_ascii=False)
        return [CallBegun(index, fresh_id(), name), Arguments(index, text), CallEnded(index)]
