"""The body of ``POST /v1/responses``, and the chat request that it stands for.

The form is OpenAI's (API reference, "Responses"). Nothing is kept between requests, so that what refers to an earlier
response is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headstart.errors import RequestError
from headstart_server.chat_protocol import ChatBody, Function, FunctionName, NamedTool, Tool
from headstart_server.conversations_protocol import ConversationBody
from headstart_server.fields import Body, ListOf, at_most, one_of
from headstart_server.protocol import JsonSchemaFormat, ResponseFormat

LOGPROBS = "message.output_text.logprobs"
"""The entry of ``include`` that asks for log-probabilities."""

_SYSTEM = ("system", "developer")
_ABSENT = {
    "previous_response_id": "this server keeps no responses; send the whole conversation as input",
    "conversation": "this server keeps no conversations; send the whole one as input",
    "background": "leave it out and wait for the answer, or stream it",
    "prompt": "this server keeps no prompts; send instructions and input",
}
"""Field that is refused -> what to do instead."""
_OWN_NAMES = {
    "logprobs": "top_logprobs",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
}


class TextFormat(Body):
    """What form the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class TextSettings(Body):
    format: TextFormat | None = None


class ResponseTool(Body):
    """A function that the model may call; unknown fields go to the chat template."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    parameters: dict[str, Any] | None = None


class NamedFunction(Body):
    """A ``tool_choice`` that names one function."""

    type: Literal["function"]
    name: str


class Reasoning(Body):
    """How the model is to think."""

    effort: str | None = None
    """For chat templates that read ``reasoning_effort``."""


class ResponsesBody(ConversationBody):
    """``POST /v1/responses``; the fields beside OpenAI's are those of the other routes."""

    input: Annotated[str | ListOf[dict[str, Any]], one_of("a text or a list of items")]
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: int | None = None
    text: TextSettings | None = None
    tools: ListOf[ResponseTool] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedFunction | None,
        one_of("none, auto, required or an object that names a function"),
    ] = None
    parallel_tool_calls: bool | None = None
    include: ListOf[str] | None = None
    top_logprobs: int | None = None
    """Number of best tokens beside each token's own log-probability; ``include`` asks for them."""
    metadata: Annotated[dict[str, str] | None, at_most(1024)] = None
    """Repeated in the response."""
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template, like ``enable_thinking``."""
    reasoning: Reasoning | None = None
    include_reasoning: bool | None = None
    """false: what the model thought is not told."""

    def as_chat(self) -> ChatBody:
        """The same request as a chat.

        Raises:
            RequestError: it asks for what this server does not have.
        """
        for name, instead in _ABSENT.items():
            if getattr(self, name):
                raise RequestError(f"{name} is given; {instead}.", name)
        if self.n not in (None, 1):
            raise RequestError(f"n is {self.n}; a response is one answer, so leave it out.", "n")
        fields: dict[str, Any] = {}
        if self.max_output_tokens is not None:
            fields["max_completion_tokens"] = self.max_output_tokens
        if self.text is not None and self.text.format is not None:
            if self.response_format is not None:
                raise RequestError("response_format stands beside text.format; keep one of them.", "text")
            fields["response_format"] = _response_format(self.text.format)
        wants_logprobs = LOGPROBS in (self.include or ())
        fields |= {
            "messages": _messages(self.instructions, self.input),
            "tools": None if self.tools is None else [_tool(tool) for tool in self.tools],
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "logprobs": wants_logprobs or None,
            "top_logprobs": self.top_logprobs if wants_logprobs else None,
            "chat_template_kwargs": self.chat_template_kwargs,
            "include_reasoning": self.include_reasoning,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
        }
        return self.chat(fields)

    def own_name(self, field: str | None) -> str | None:
        """As for every request, with the names of this route."""
        if field == "max_tokens" and self.max_output_tokens is not None:
            return "max_output_tokens"
        if field == "prompt" and self.prompt:
            return field
        own = super().own_name(field)
        if own == "structured_outputs" and self.structured_outputs is None:
            # Nothing else asks for a structure but a forced call.
            return "tools" if self.text is None else "text"
        return _OWN_NAMES.get(own, own) if own else own


def _response_format(wanted: TextFormat) -> ResponseFormat:
    schema = JsonSchemaFormat(name=wanted.name, schema=wanted.json_schema) if wanted.type == "json_schema" else None
    if schema is not None and schema.json_schema is None:
        raise RequestError("text.format.schema is missing; give the schema.", "text")
    return ResponseFormat(type=wanted.type, json_schema=schema)


def _tool(tool: ResponseTool) -> Tool:
    if tool.type != "function":
        raise RequestError(f"tools holds {tool.type!r}; only functions can be offered here.", "tools")
    if tool.name is None:
        raise RequestError("tools holds a function without a name; name it.", "tools")
    given = tool.model_dump(exclude_unset=True)
    del given["type"]
    return Tool(function=Function(**given))


def _choice(choice: str | NamedFunction | None) -> Any:
    return NamedTool(function=FunctionName(name=choice.name)) if isinstance(choice, NamedFunction) else choice


def _messages(instructions: str | None, given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A chat's messages. What stands before the conversation is one system message: few templates allow for more."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for message in _each(items):
        last = messages[-1] if messages else {}
        if message["role"] == "system" == last.get("role"):
            last["content"] += "\n\n" + message["content"]
        elif _is_thought(last) and message["role"] == "assistant":
            last |= message
        elif "tool_calls" in message and last.get("role") == "assistant":
            # Calls beside each other, and what was said before them, are one message.
            last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
        else:
            messages.append(message)
    return messages


def _is_thought(message: Mapping[str, Any]) -> bool:
    """Whether a message holds a thought alone, which belongs to what is said next."""
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def _each(items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each item of an input as a message of its own."""
    for item in items:
        match item:
            case {"type": "reasoning", "content": [*parts]}:
                thought = "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
                yield {"role": "assistant", "content": "", "reasoning_content": thought}
            case {"type": "reasoning"}:
                continue
            case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
                function = {"name": name, "arguments": arguments}
                call = {"id": call_id, "type": "function", "function": function}
                yield {"role": "assistant", "content": "", "tool_calls": [call]}
            case {"type": "function_call_output", "call_id": str(call_id), "output": output}:
                yield {"role": "tool", "tool_call_id": call_id, "content": _text(output)}
            case {"role": str(role), "content": content} if item.get("type", "message") == "message":
                yield {"role": "system" if role in _SYSTEM else role, "content": _text(content)}
            case {"type": str(kind)} if kind not in ("message", "function_call", "function_call_output"):
                raise RequestError(
                    f"input holds an item of type {kind!r}, which is not known here; leave it out.", "input"
                )
            case _:
                raise RequestError("input holds an item without what its type needs; see GET /openapi.json.", "input")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("input holds content that is neither a text nor a list of parts.", "input")
    texts = []
    for part in content:
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": str(kind)}:
                raise RequestError(f"input holds a part of type {kind!r}; texts are all that is read here.", "input")
            case _:
                raise RequestError("input holds a part without a type; give it as input_text.", "input")
    return "".join(texts)
