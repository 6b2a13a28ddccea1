"""How a request wants its tools used: calls are enforced if it demands one, else found in the model's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.server.chat_protocol import AllowedTools, ChatBody, NamedTool, Tool, ToolSubset
from headstart.server.tool_forms import ToolCall
from headstart.server.tool_parser import Said, ToolParser


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

    def parser(self, thinking: bool = False) -> AnswerParser:
        """What reads one answer; ``thinking``: its prompt ends inside a thought."""
        if self.named is not None:
            return _NamedCall(self.named)
        return ToolParser(self.names, thinking and self.structure is None, self.parallel)


class _NamedCall:
    """Reads an answer that is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._arguments = ""
        self.called = 0

    def feed(self, piece: str) -> Said:
        self._arguments += piece
        return Said("", [])

    def finish(self) -> Said:
        self.called = 1
        return Said("", [ToolCall(self._name, self._arguments)])


AnswerParser = ToolParser | _NamedCall
"""Reads one answer, piece by piece."""


def read_whole(parser: AnswerParser, rest: str) -> Said:
    """An answer's last piece, which may be all of it, and what was held back."""
    said, last = parser.feed(rest), parser.finish()
    return Said(said.text + last.text, said.calls + last.calls)


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
    def call(place: int, tool: Tool) -> dict[str, Any]:
        arguments = _moved(_parameters(tool), f"#/items/anyOf/{place}/properties/arguments")
        return {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }

    calls = [call(place, tool) for place, tool in enumerate(tools)]
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": most}


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A schema for another place: its references to itself (``#``, ``#/...``) name what they named."""
    home = schema.get("$id")
    roots = ["#", *([f"{home.rstrip('#')}#"] if isinstance(home, str) else [])]

    def moved(value: Any, keywords: bool) -> Any:
        """``keywords``: an object's keys are keywords of a schema, not names that somebody chose."""
        if isinstance(value, list):
            return [moved(item, keywords) for item in value]
        if not isinstance(value, dict):
            return value
        made: dict[str, Any] = {}
        for key, inner in value.items():
            if keywords and key == "$ref" and isinstance(inner, str):
                root = next((root for root in roots if inner == root or inner.startswith(f"{root}/")), None)
                made[key] = inner if root is None else place + inner[len(root) :]
            elif keywords and key in _VALUES:
                made[key] = inner
            else:
                made[key] = moved(inner, not (keywords and key in _BY_NAME))
        return made

    return {key: value for key, value in moved(schema, keywords=True).items() if key != "$id"}


_VALUES = ("const", "enum", "default", "examples")
"""Keywords of a schema that hold values."""
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords of a schema that hold schemas by names."""
