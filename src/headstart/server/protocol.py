"""The bodies of requests, as the OpenAI API has them, and what they mean here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from headstart.drafting.base import SpeculationParams
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.sampling.structured import StructuredOutputsParams
from headstart.server.settings import ServerSettings
from headstart.verification.base import VerifyRule

_UNSUPPORTED = {
    "add_generation_prompt": "write it into chat_template_kwargs",
    "bad_words": "ban tokens with logit_bias or allowed_token_ids",
    "chat_template": "the model's own template is used",
    "continue_final_message": "continue texts by /v1/completions",
    "documents": "write them into a message",
    "function_call": "ask with tool_choice",
    "functions": "offer them as tools",
    "grammar": "ask for a schema or an expression with structured_outputs",
    "guided_grammar": "ask for a schema or an expression with structured_outputs",
    "include_stop_str_in_output": "stop_reason names the stop string",
    "prompt_logprobs": "ask for echo with logprobs by /v1/completions",
    "truncate_prompt_tokens": "shorten the prompt",
    "use_beam_search": "ask for n samples",
}
"""Fields of other servers without which the answer would be a wrong one, and what to do instead."""
Count = Annotated[int, Field(ge=0, le=1 << 20)]
# What the document says of these, a sentence of our own refuses: the library's would not say the mend.
_Some = Field(json_schema_extra={"minItems": 1})
_Choices = Annotated[list[Annotated[str, Field(json_schema_extra={"minLength": 1})]] | None, _Some]
_TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0})]


def _one_of(forms: str) -> WrapValidator:
    """Of a value that has none of several forms, say what they are instead of why it has not the first of them."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise PydanticCustomError("form", "It must be {forms}", {"forms": forms}) from None

    return WrapValidator(check)


class Body(BaseModel):
    """Fields that no model knows are ignored, as OpenAI's clients expect. Values must have the type that is named."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=(), use_attribute_docstrings=True)


class Speculation(Body):
    """How this request is drafted and verified; what is left out is the server's choice."""

    drafter: str | None = Field(default=None, max_length=100)
    draft_tokens: Count | None = None
    tree_nodes: Count | None = None
    verify: Annotated[VerifyRule, Field(strict=False)] | None = None
    off: bool = False

    def params(self, otherwise: SpeculationParams) -> SpeculationParams:
        """The request's wishes, ``otherwise`` where it has none."""
        return SpeculationParams(
            enabled=otherwise.enabled and not self.off,
            drafter=otherwise.drafter if self.drafter is None else self.drafter,
            draft_tokens=otherwise.draft_tokens if self.draft_tokens is None else self.draft_tokens,
            tree_nodes=otherwise.tree_nodes if self.tree_nodes is None else self.tree_nodes,
            verify=otherwise.verify if self.verify is None else self.verify,
            lenience=otherwise.lenience,
            typical=otherwise.typical,
        )


class StreamOptions(Body):
    include_usage: bool = False


class JsonSchemaFormat(Body):
    """A schema, as ``response_format`` names it."""

    name: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class ResponseFormat(Body):
    """OpenAI's way to ask for a structured output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Body):
    """vLLM's way to ask for one; exactly one field is given."""

    json_schema: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: _Choices = None


class Generation(Body):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(default=None, max_length=500)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[str | list[str] | None, _one_of("a text or a list of texts")] = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None
    cache_salt: str | None = Field(default=None, max_length=200)
    """Only requests of the same salt (and the same key) share what was computed for a common beginning."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: _Choices = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, settings: ServerSettings, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The parameters of the engine.

        Raises:
            RequestError: a value is beyond what the engine or this server allows.
        """
        for name, value in (self.model_extra or {}).items():
            if name in _UNSUPPORTED and _is_asked(name, value):
                raise RequestError(f"{name} is given, which this server does not know; {_UNSUPPORTED[name]}.")
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        _at_most("n", self.n or 1, settings.max_samples)
        _at_most("logprobs", logprobs or 0, settings.max_logprobs)
        _at_most("the number of logit_bias entries", len(self.logit_bias or ()), settings.max_logit_bias)
        _at_most("the number of stop strings", len(stops), settings.max_stops)
        _at_most("the number of stop_token_ids", len(self.stop_token_ids or ()), settings.max_logit_bias)
        _at_most("the length of a stop string", max(map(len, stops), default=0), settings.max_stop_length)
        same = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
        more = ("min_tokens", "ignore_eos", "n", "logit_bias", "stop_token_ids", "allowed_token_ids")
        given = {name: value for name in (*same, *more) if (value := getattr(self, name)) is not None}
        seed = None if self.seed is None else self.seed % 2**64
        return SamplingParams(
            **given,
            stop=tuple(stops),
            seed=seed,
            max_tokens=max_tokens,
            logprobs=logprobs,
            structured_outputs=self.structure(settings),
        )

    def structure(self, settings: ServerSettings) -> StructuredOutputsParams | None:
        """What the output must be, whichever field says so.

        Raises:
            RequestError: several fields say so, or what they say is wrong or too long.
        """
        wanted: dict[str, Any] = {"json": self.guided_json, "regex": self.guided_regex, "choice": self.guided_choice}
        asked = [wanted] if any(value is not None for value in wanted.values()) else []
        if self.structured_outputs is not None:
            asked.append(self.structured_outputs.model_dump(by_alias=True, exclude_none=True))
        if self.response_format is not None and self.response_format.type != "text":
            schema = self.response_format.json_schema
            if self.response_format.type == "json_schema" and schema is None:
                raise RequestError("response_format.json_schema is missing; give the schema.")
            named = None if schema is None else schema.json_schema
            asked.append({"json_object": True} if named is None else {"json": named})
        if not asked:
            return None
        if len(asked) > 1:
            raise RequestError("several fields ask for a structured output; keep one of them.")
        structure = StructuredOutputsParams(**asked[0])
        _at_most("the length of the schema, expression or choices", structure.size, settings.max_schema_length)
        return structure


class Function(Body):
    """A function that the model may call; what else is given goes to the template."""

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
    """``tool_choice`` of one function."""

    type: Literal["function"] = "function"
    function: FunctionName


class CompletionBody(Generation):
    """``POST /v1/completions``."""

    prompt: Annotated[
        str | list[int] | list[str] | list[list[int]],
        _one_of("a text, a list of token ids, or a list of either"),
    ]
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None


class ChatBody(Generation):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], _Some]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None,
        _one_of("none, auto, required or an object that names a function"),
    ] = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """What else the model's template knows, like ``enable_thinking``."""


class TokenizeBody(Body):
    """``POST /tokenize``: a text, or a conversation as the model reads it."""

    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]] | None, _Some] = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """``POST /detokenize``."""

    tokens: list[_TokenId]


def _is_asked(name: str, value: Any) -> bool:
    """Many clients send what they do not use as null, false or empty."""
    return value is False if name == "add_generation_prompt" else bool(value)


def _at_most(name: str, value: int, bound: int) -> None:
    if value > bound:
        raise RequestError(f"{name} is {value}; this server allows {bound}.")
