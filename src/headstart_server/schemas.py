"""The form of replies, for the OpenAPI document; ``replies.py``, ``choices.py`` and ``generation.py`` build them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every error, in OpenAI's form."""

    error: ErrorDetail


class SpeculationCounts(BaseModel):
    """Counts of guesses; position 0 is the first guess after the root."""

    drafter: str | None
    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    beam_steps: int
    """Of beam searches: rounds that they would have had without guesses."""
    drafted_per_position: list[int]
    accepted_per_position: list[int]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = Field(0, description="Of a chat: tokens of thoughts.")


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    speculation: SpeculationCounts


class SpecDecodeMetrics(BaseModel):
    """vLLM's counts of one sample's guesses."""

    mean_acceptance_length: float = Field(description="Tokens said in a step: accepted guesses, and the target's own.")
    draft_acceptance_rate: float
    acceptance_histogram: list[int] = Field(description="[j] steps of which j guesses became output.")
    num_spec_steps: int = Field(description="Rounds in which something was guessed.")
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int = Field(description="Depth of the deepest guess.")


class RequestMetrics(BaseModel):
    speculative_decoding: SpecDecodeMetrics


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class RankedLogprob(BaseModel):
    logprob: float
    rank: int = Field(description="1: the most probable token.")
    decoded_token: str


PromptLogprobs = list[dict[str, RankedLogprob] | None]
"""[prompt token] by token id: the token itself and the best in its place; None for the first one."""


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length", "abort"]
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    score: float | None = Field(None, description="Of a beam: its log-probability over length ** length_penalty.")
    cumulative_logprob: float | None = Field(None, description="Of a beam: its log-probability, after the transforms.")


class CompletionReply(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: RequestMetrics | None = None


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChosenLogprob]
    refusal: None


class CalledFunction(BaseModel):
    name: str
    arguments: str = Field(description="JSON text.")


class CalledTool(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = Field(None, description="What the model thought, where it thought.")
    reasoning: str | None = Field(None, description="The same, by vLLM's newer name.")
    tool_calls: list[CalledTool] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "abort"]
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    score: float | None = Field(None, description="Of a beam: its log-probability over length ** length_penalty.")
    cumulative_logprob: float | None = Field(None, description="Of a beam: its log-probability, after the transforms.")


class ChatReply(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: RequestMetrics | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChosenLogprob]


class OutputMessage(BaseModel):
    type: Literal["message"]
    id: str
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(BaseModel):
    type: Literal["reasoning"]
    id: str
    status: Literal["completed", "incomplete"]
    summary: list[Any] = Field(description="Always empty: thoughts are told as they are.")
    content: list[ReasoningText]


class OutputCall(BaseModel):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str = Field(description="JSON text.")
    status: Literal["completed", "incomplete"]


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int = Field(description="Always 0: nothing is paid for.")


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    speculation: SpeculationCounts


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens", "abort"]


class ResponseReply(BaseModel):
    """What the request asked for is repeated beside these."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    usage: ResponseUsage


class ModelStatus(BaseModel):
    value: Literal["loaded", "loading", "unloaded", "failed"]


class ServedModel(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str = Field(description="The first of the model's names; of an adapter, its path.")
    max_model_len: int | None = Field(description="null: the model is not loaded.")
    parent: str | None = Field(description="Of an adapter: its model's name.")
    status: ModelStatus


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ServedModel]


class DrafterTextsReply(BaseModel):
    object: Literal["drafter.texts"]
    tokens: int
    """That were taken."""


class TokensReply(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class AddedToken(BaseModel):
    content: str
    special: bool


class TokenizerInfo(BaseModel):
    """Further roles of special tokens may stand beside these."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    model_max_length: int
    clean_up_tokenization_spaces: bool
    chat_template: str | None
    added_tokens_decoder: dict[str, AddedToken] = Field(description="By token id.")


class TextReply(BaseModel):
    prompt: str


class HealthReply(BaseModel):
    status: Literal["ok", "closing"]


class VersionReply(BaseModel):
    version: str


class StatsReply(BaseModel):
    model: str
    backend: str
    drafters: list[str]
    default_drafter: str
    max_context: int
    max_sequences: int
    now: dict[str, float] = Field(description="Current gauges, by Prometheus name.")
    totals: dict[str, Any] = Field(description="Counters since the start, by Prometheus name and labels.")
