"""Tool calls: enforced if the request demands one, else found in the model's text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.server.protocol import AllowedTools, ChatBody, NamedTool, Tool, ToolSubset

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAGGED = re.compile(rf"{_OPEN}(.*?)(?:{_CLOSE}|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """One call, with its arguments as JSON text."""

    name: str
    arguments: str

    def as_openai(self) -> dict[str, Any]:
        """The call in OpenAI's form, with a fresh id."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": "call_" + secrets.token_hex(12), "type": "function", "function": function}


@dataclass(frozen=True)
class ToolRules:
    """How the tools of one request are used."""

    names: frozenset[str]
    structure: StructuredOutputsParams | None = None
    """What form the output must have if a call is forced; None: the model chooses."""
    named: str | None = None
    """The function that must be called: the output is nothing but its arguments."""
    parallel: bool = True
    """False: if the model writes several calls, only the first one counts."""

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """Split a whole output into the text beside the calls, and the calls."""
        if self.named is not None:
            return "", [ToolCall(self.named, text)]
        found = list(_TAGGED.finditer(text))
        if found:
            each = [self._calls(match[1]) for match in found]
            return (text[: found[0].start()], self._kept([*chain(*each)])) if all(each) else (text, [])
        calls = self._kept(self._calls(text)) if text.lstrip()[:1] == "[" else []
        return ("", calls) if calls else (text, [])

    def _kept(self, calls: list[ToolCall]) -> list[ToolCall]:
        return calls if self.parallel else calls[:1]

    def _calls(self, text: str) -> list[ToolCall]:
        """The calls in a JSON object or list; none if the text is anything else."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return []
        calls = []
        for item in value if isinstance(value, list) else [value]:
            match item:
                case {"name": str(name), "arguments": dict(arguments)} if name in self.names:
                    calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
                case _:
                    return []
        return calls


class ToolStream:
    """The text of a sample as it grows, without what is, or may become, a call."""

    def __init__(self, rules: ToolRules) -> None:
        self._rules = rules
        self._text = ""
        self._shown = 0

    def feed(self, piece: str) -> str:
        """Take more text; return what can be shown now and was not shown before."""
        self._text += piece
        if self._rules.structure is not None or self._text.lstrip()[:1] in ("", "["):
            return ""
        end = self._text.find(_OPEN)
        if end < 0:
            begun = (size for size in range(len(_OPEN), 0, -1) if self._text.endswith(_OPEN[:size]))
            end = len(self._text) - next(begun, 0)
        return self._show(end)

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The rest of the text, and the calls."""
        said, calls = self._rules.read(self._text)
        self._text = said
        return self._show(len(said)), calls

    def _show(self, end: int) -> str:
        shown, self._shown = self._shown, max(end, self._shown)
        return self._text[shown:end]


def tool_rules(body: ChatBody, template_knows_tools: bool, max_tools: int) -> ToolRules | None:
    """How a request wants its tools used; None: the output is nothing but text.

    Raises:
        RequestError: there are too many tools, or ``tool_choice`` does not fit them.
    """
    tools = body.tools or []
    if len(tools) > max_tools:
        raise RequestError(f"the number of tools is {len(tools)}; this server allows {max_tools}.", "tools")
    choice = body.tool_choice
    if isinstance(choice, AllowedTools):
        tools, choice = _allowed(tools, choice.allowed_tools), choice.allowed_tools.mode
    names = frozenset(tool.function.name for tool in tools)
    if choice in (None, "none", "auto"):
        parallel = body.parallel_tool_calls is not False
        return ToolRules(names, parallel=parallel) if tools and template_knows_tools and choice != "none" else None
    if not tools:
        raise RequestError("tool_choice asks for a call, but tools is empty; name the functions there.", "tools")
    if isinstance(choice, NamedTool):
        tool = _named(tools, choice.function.name)
        return ToolRules(names, StructuredOutputsParams(json=_parameters(tool)), tool.function.name)
    most = 1 if body.parallel_tool_calls is False else len(tools)
    return ToolRules(names, StructuredOutputsParams(json=_calls_schema(tools, most)))


def _allowed(tools: Sequence[Tool], subset: ToolSubset) -> list[Tool]:
    if not subset.tools:
        raise RequestError("tool_choice allows no tools; name at least one, or choose none.", "tool_choice")
    return [_named(tools, allowed.function.name) for allowed in subset.tools]


def _named(tools: Sequence[Tool], name: str) -> Tool:
    tool = next((tool for tool in tools if tool.function.name == name), None)
    if tool is None:
        raise RequestError(f"tool_choice names function {name!r}, which is not one of tools.", "tool_choice")
    return tool


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object"}


def _calls_schema(tools: Sequence[Tool], most: int) -> dict[str, Any]:
    def call(tool: Tool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": _parameters(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }

    return {"type": "array", "items": {"anyOf": [call(tool) for tool in tools]}, "minItems": 1, "maxItems": most}
