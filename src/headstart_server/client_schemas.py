"""The form of replies in other APIs than OpenAI's, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from headstart_server.schemas import SpeculationCounts


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    """Every error, in Anthropic's form."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: None


class OllamaError(BaseModel):
    """Every error, in Ollama's form."""

    error: str


class MessageUsage(BaseModel):
    input_tokens: int = Field(description="Of the prompt, but for those that were found in the cache.")
    output_tokens: int
    cache_creation_input_tokens: int = Field(description="Always 0: nothing is paid for.")
    cache_read_input_tokens: int
    speculation: SpeculationCounts


class MessageReply(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]] = Field(description="Blocks: thinking, text, tool_use.")
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class CountReply(BaseModel):
    input_tokens: int


class _OllamaReply(BaseModel):
    """Times are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "abort", "load", "unload"] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[Any] | None = None
    speculation: SpeculationCounts | None = None


class OllamaMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[Any] | None = None


class OllamaChatReply(_OllamaReply):
    message: OllamaMessage


class OllamaGenerateReply(_OllamaReply):
    response: str
    thinking: str | None = None
    context: list[int] | None = Field(None, description="Tokens so far, to go on from.")


class OllamaDetails(BaseModel):
    parent_model: str
    format: Literal["gguf", "safetensors"]
    family: str = Field(description="Empty: the model is not loaded.")
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    """``GET /api/ps`` has the last three as well."""

    name: str
    model: str
    modified_at: str | None = None
    size: int = Field(description="Bytes of its files; of a loaded one, of memory.")
    digest: str
    details: OllamaDetails
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class OllamaTags(BaseModel):
    models: list[OllamaModel]


class OllamaShow(BaseModel):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "insert", "thinking"]]
    modified_at: str


class OllamaVersion(BaseModel):
    version: str = Field(description="Of Ollama's API.")
    headstart: str


class InfillTimings(BaseModel):
    """Times are in milliseconds."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int
    draft_n_accepted: int


class InfillReply(BaseModel):
    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool = Field(description="false: more follows in the stream, and what stands below is left out.")
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    stop_type: Literal["eos", "limit", "word"] | None = None
    stopping_word: str | None = None
    tokens_cached: int | None = None
    truncated: bool | None = None
    timings: InfillTimings | None = None
    speculation: SpeculationCounts | None = None


class SlotState(BaseModel):
    id: int
    id_task: int = Field(description="Counts the requests of this slot; -1: there was none.")
    n_ctx: int
    speculative: bool
    is_processing: bool
    n_prompt_tokens: int = Field(description="Of its prompt; once it has ended, with its output.")
    params: dict[str, Any] | None = Field(default=None, description="While it is at work.")
    next_token: list[dict[str, Any]] | None = None


class SlotReply(BaseModel):
    id_slot: int
    filename: str | None = None
    n_saved: int | None = Field(default=None, description="Tokens whose keys and values are in the file: whole blocks.")
    n_written: int | None = Field(default=None, description="Bytes.")
    n_restored: int | None = Field(default=None, description="Tokens that requests find from now on.")
    n_read: int | None = Field(default=None, description="Bytes.")
    n_erased: int | None = None
    timings: dict[str, float] | None = None
