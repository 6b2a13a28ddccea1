"""The bodies of requests with a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headstart_server.fields import Body, ListOf, Some, one_of
from headstart_server.protocol import GenerationBody


class Function(Body):
    """A function that the model may call; unknown fields go to the chat template."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1, max_length=64)]
    parameters: dict[str, Any] | None = None


class Tool(Body):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"] = "function"
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    """A ``tool_choice`` that names one function."""

    type: Literal["function"] = "function"
    function: FunctionName


class ToolSubset(Body):
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[ListOf[NamedTool], Some]


class AllowedTools(Body):
    """A ``tool_choice`` that allows some of the tools: the model sees the others, but they are not called."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolSubset


class Templated(Body):
    """What shapes a conversation's prompt besides its messages."""

    tools: ListOf[Tool] | None = None
    add_generation_prompt: bool | None = None
    """false: the prompt ends with the last message; nothing is added to begin an answer."""
    continue_final_message: bool | None = None
    """true: the prompt ends where the last message's text ends, so that the answer continues it."""
    documents: ListOf[dict[str, Any]] | None = None
    """For chat templates that use documents."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template, like ``enable_thinking``."""
    reasoning_effort: str | None = None
    """How much the model is to think, for chat templates that read it."""

    def shown_tools(self) -> list[dict[str, Any]] | None:
        """The tools in the form that the template reads."""
        return None if self.tools is None else [tool.model_dump(exclude_unset=True) for tool in self.tools]

    def template_variables(self) -> dict[str, Any]:
        """The template's variables besides messages and tools."""
        named = ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")
        given = {name: value for name in named if (value := getattr(self, name)) is not None}
        return {**(self.chat_template_kwargs or {}), **given}


class ChatBody(Templated, GenerationBody):
    """``POST /v1/chat/completions``."""

    model_config = ConfigDict(extra="allow")

    messages: Annotated[ListOf[dict[str, Any]], Some]
    echo: bool | None = None
    """true: the answer begins with the message that it continues (``continue_final_message``)."""
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | AllowedTools | None,
        one_of("none, auto, required or an object that names a function or the allowed_tools"),
    ] = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    """false: what the model thought is not told."""

    def continued(self) -> str:
        """The text of the message that the answer continues."""
        content = self.messages[-1].get("content") if self.continue_final_message else None
        return content if isinstance(content, str) else ""

    def own_name(self, field: str | None) -> str | None:
        """As for every request, with a chat's own names."""
        if field == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        own = super().own_name(field)
        if own == "structured_outputs" and self.structured_outputs is None:
            # Nothing else asks for a structure but a forced call.
            return "tools"
        return "messages" if own == "prompt" else own


class TokenizeBody(Templated):
    """``POST /tokenize``: a text, or a conversation, which goes through the chat template."""

    model: str | None = Field(default=None, max_length=500)
    prompt: str | None = None
    messages: Annotated[ListOf[dict[str, Any]] | None, Some] = None
    add_special_tokens: bool = True
