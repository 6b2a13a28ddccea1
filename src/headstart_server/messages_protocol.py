"""The body of ``POST /v1/messages``, and the chat request that it stands for.

The form is Anthropic's (API reference, "Messages").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headstart.errors import RequestError
from headstart_server.chat_protocol import ChatBody
from headstart_server.conversations_protocol import ConversationBody
from headstart_server.fields import Body, ListOf, Some, one_of

_OWN_NAMES = {"stop": "stop_sequences", "prompt": "messages", "structured_outputs": "output_config"}
_SILENT = ("redacted_thinking",)
"""Blocks of an assistant's turn that say nothing to this model."""


class MessageTool(Body):
    """A tool of the client's own; unknown fields are left out."""

    type: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class MessageToolChoice(Body):
    """How tools are used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: str | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """What form the text must have."""

    format: OutputFormat | None = None
    effort: str | None = None


class MessagesBody(ConversationBody):
    """``POST /v1/messages``; the fields beside Anthropic's are those of the other routes."""

    model_config = ConfigDict(extra="allow")

    messages: Annotated[ListOf[dict[str, Any]], Some]
    system: Annotated[str | ListOf[dict[str, Any]] | None, one_of("a text or a list of text blocks")] = None
    stop_sequences: ListOf[str] | None = None
    tools: ListOf[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    metadata: dict[str, Any] | None = None
    mcp_servers: ListOf[dict[str, Any]] | None = None
    container: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""

    def as_chat(self) -> ChatBody:
        """The same request as a chat.

        Raises:
            RequestError: it asks for what this server does not have.
        """
        for name in ("mcp_servers", "container"):
            if getattr(self, name):
                raise RequestError(f"{name} is given; this server calls nothing by itself, so leave it out.", name)
        messages = [*_system(self.system), *_messages(self.messages)]
        return self.chat(
            {
                "messages": messages,
                "stop": self.stop_sequences,
                "continue_final_message": (messages[-1:] and messages[-1]["role"] == "assistant") or None,
                **self._tool_fields(),
                **self._thinking_fields(),
                **self._format_fields(),
            },
        )

    def own_name(self, field: str | None) -> str | None:
        """As for every request, with the names of this route."""
        own = super().own_name(field)
        return _OWN_NAMES.get(own, own) if own else own

    def _tool_fields(self) -> dict[str, Any]:
        choice = self.tool_choice
        fields: dict[str, Any] = {"tools": None if self.tools is None else [_tool(tool) for tool in self.tools]}
        if choice is None:
            return fields
        if choice.type == "tool":
            if choice.name is None:
                raise RequestError("tool_choice is of type tool; give the tool's name.", "tool_choice")
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            fields["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
        if choice.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
        return fields

    def _thinking_fields(self) -> dict[str, Any]:
        variables = dict(self.chat_template_kwargs or {})
        fields: dict[str, Any] = {}
        if self.thinking is not None:
            variables.setdefault("enable_thinking", self.thinking.type != "disabled")
            if self.thinking.type == "enabled" and self.thinking.budget_tokens is not None:
                fields["thinking_token_budget"] = self.thinking.budget_tokens
            fields["include_reasoning"] = False if self.thinking.display == "omitted" else None
        if self.output_config is not None and self.output_config.effort is not None:
            variables.setdefault("reasoning_effort", self.output_config.effort)
        return fields | {"chat_template_kwargs": variables or None}

    def _format_fields(self) -> dict[str, Any]:
        wanted = None if self.output_config is None else self.output_config.format
        if wanted is None:
            return {}
        schema = {"name": "answer", "schema": wanted.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class CountTokensBody(MessagesBody):
    """``POST /v1/messages/count_tokens``."""


def _tool(tool: MessageTool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"tools holds {tool.name!r} of type {tool.type!r}, which Anthropic's servers have; offer tools of your "
            "own, with an input_schema.",
            "tools",
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _system(given: Any) -> Iterator[dict[str, Any]]:
    if given:
        yield {"role": "system", "content": given if isinstance(given, str) else "\n".join(_texts(given, "system"))}


def _messages(given: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages of a chat: results of tools are messages of their own, thoughts stand beside what was said."""
    for index, message in enumerate(given):
        where = f"messages.{index}"
        match message:
            case {"role": "user" | "assistant" | "system" as role, "content": str(text)}:
                yield {"role": role, "content": text}
            case {"role": "user", "content": list(blocks)}:
                yield from _user(blocks, where)
            case {"role": "assistant", "content": list(blocks)}:
                yield _assistant(blocks, where)
            case {"role": "system", "content": list(blocks)}:
                yield from _system(blocks)
            case _:
                raise RequestError(
                    f"{where} is no message; give role user or assistant, and content as a text or a list of blocks.",
                    "messages",
                )


def _user(blocks: list[Any], where: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for block in blocks:
        match block:
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                content = block.get("content") or ""
                said = content if isinstance(content, str) else "\n".join(_texts(content, where))
                if block.get("is_error"):
                    said = f"Error: {said}"
                yield {"role": "tool", "tool_call_id": call_id, "content": said}
            case _:
                texts += _texts([block], where)
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(blocks: list[Any], where: str) -> dict[str, Any]:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        match block:
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": str(kind)} if kind in _SILENT:
                continue
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": Mapping() as given}:
                function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case _:
                texts += _texts([block], where)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _texts(blocks: Any, where: str) -> list[str]:
    """The texts of blocks.

    Raises:
        RequestError: one is no text.
    """
    if not isinstance(blocks, list):
        raise RequestError(f"{where} holds content that is neither a text nor a list of blocks.", where.split(".")[0])
    texts = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                texts.append(text)
            case {"type": str(kind)}:
                raise RequestError(
                    f"{where} holds a block of type {kind!r}; texts, tool calls and their results are all that this "
                    "model reads.",
                    where.split(".")[0],
                )
            case _:
                raise RequestError(f"{where} holds a block without a type; give it as text.", where.split(".")[0])
    return texts
