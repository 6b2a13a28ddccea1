"""How a request wants its tools used: calls are enforced if it demands one, else found in the model's text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.answers.model_answers import ModelAnswers
from headstart.text.answers.tools import Tools
from headstart_server.chat_protocol import AllowedTools, ChatBody, NamedTool, Tool, ToolSubset

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolRules:
    """How the tools of one request are used."""

    tools: Tools
    structure: StructuredOutputsParams | None = None
    """What form the output must have if a call is forced; None: the model chooses."""
    named: bool = False
    """The request names the function that must be called."""
    parallel: bool = True
    """False: if the model writes several calls, only the first one counts."""


def tool_rules(
    body: ChatBody, answers: ModelAnswers, template_knows_tools: bool, max_tools: int, model: str
) -> ToolRules | None:
    """How a request wants its tools used; None: the output is nothing but text. The log says once of a model that tools
    it is never shown are left out.

    Raises:
        RequestError: there are too many tools, or ``tool_choice`` does not fit them.
    """
    tools = body.tools or []
    if len(tools) > max_tools:
        raise RequestError(f"the number of tools is {len(tools)}; this server allows {max_tools}.", "tools")
    choice = body.tool_choice
    if isinstance(choice, AllowedTools):
        tools, choice = _allowed(tools, choice.allowed_tools), choice.allowed_tools.mode
    parallel = body.parallel_tool_calls is not False
    if choice in (None, "none", "auto"):
        if tools and choice != "none" and not template_knows_tools:
            _tell_dropped(model)
        chosen = tools and template_knows_tools and choice != "none"
        return ToolRules(_tools(tools), parallel=parallel) if chosen else None
    if not tools:
        raise RequestError("tool_choice asks for a call, but tools is empty; name the functions there.", "tools")
    named = isinstance(choice, NamedTool)
    callable_ = _tools([_named(tools, choice.function.name)] if isinstance(choice, NamedTool) else tools)
    most = len(tools) if parallel and not named else 1
    forced = answers.calls.forced
    assert forced is not None
    structure = StructuredOutputsParams(grammar=forced.grammar(callable_, most, answers.special.get))
    return ToolRules(callable_, structure, named, parallel and not named)


@cache
def _tell_dropped(model: str) -> None:
    _log.warning(
        "the chat template of %s does not show tools, so requests' tools are left out, and answers are text; choose "
        "--chat-template with tools, or send tool_choice required, which the form of the answer enforces.",
        model,
    )


def _tools(tools: Sequence[Tool]) -> Tools:
    return Tools({tool.function.name: tool.function.parameters for tool in tools})


def _allowed(tools: Sequence[Tool], subset: ToolSubset) -> list[Tool]:
    if not subset.tools:
        raise RequestError("tool_choice allows no tools; name at least one, or choose none.", "tool_choice")
    return [_named(tools, allowed.function.name) for allowed in subset.tools]


def _named(tools: Sequence[Tool], name: str) -> Tool:
    tool = next((tool for tool in tools if tool.function.name == name), None)
    if tool is None:
        raise RequestError(f"tool_choice names function {name!r}, which is not one of tools.", "tool_choice")
    return tool
