"""The bodies of requests in the OpenAI API's form, and their meaning for the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.errors import RequestError
from headstart.sampling.defaults import SamplingDefaults
from headstart.sampling.params import SamplingParams
from headstart.sampling.structured import StructuredOutputsParams
from headstart_server.fields import Biases, Body, Choices, Count, ListOf, TokenId, also_called, declared, one_of
from headstart_server.refused_fields import refuse_foreign
from headstart_server.settings import ServerSettings

_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("use_beam_search", "beam_width", "length_penalty", "early_stopping"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("min_tokens", "ignore_eos", "n", "logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words"),
    *("include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens", "prompt_logprobs"),
    "thinking_token_budget",
)
"""Fields of a request that have the same name and meaning in ``SamplingParams``."""
_STRUCTURES = (
    *("structured_outputs", "response_format", "guided_json", "guided_regex", "guided_choice"),
    *("json_schema", "regex"),
)


class Speculation(Body):
    """How this request is drafted and verified; the server chooses what is left out. Headstart's own: a field that it
    does not know is a mistake."""

    model_config = ConfigDict(extra="forbid")

    drafter: str | None = Field(default=None, max_length=100)
    draft_tokens: Annotated[Count | None, declared("draft_tokens")] = None
    tree_nodes: Annotated[Count | None, declared("tree_nodes")] = None
    verify: Annotated[Annotated[VerifyRule, Field(strict=False)] | None, declared("verify")] = None
    off: bool = False
    metrics: bool = False
    """true: the reply has ``metrics.speculative_decoding``, in vLLM's form."""

    def params(self, otherwise: SpeculationParams) -> SpeculationParams:
        """The request's wishes; ``otherwise`` holds the defaults."""
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
    """A schema in OpenAI's ``response_format``."""

    name: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class ResponseFormat(Body):
    """OpenAI's way to ask for a structured output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    bare_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    """The schema itself, as llama.cpp takes it."""


class StructuredOutputs(Body):
    """vLLM's way to ask for a structured output; exactly one field must be given."""

    json_schema: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class Prediction(Body):
    """A text that the output is expected to resemble."""

    type: Literal["content"]
    content: Annotated[str | ListOf[TextPart], one_of("a text or a list of text parts")]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class GenerationBody(Body):
    """What all requests for texts share."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(default=None, max_length=500)
    max_tokens: int | None = also_called("max_tokens")
    """-1: as many as fit into the context."""
    temperature: float | None = None
    """0 is greedy; null or left out: the model's default."""
    top_p: float | None = None
    """null or left out: the model's default."""
    top_k: int | None = None
    """null or left out: the model's default."""
    min_p: float | None = None
    """null or left out: the model's default."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = also_called("repetition_penalty")
    """null or left out: the model's default."""
    repeat_last_n: int | None = None
    """0: there is no repetition penalty. Otherwise it covers prompt and output."""
    logit_bias: Biases = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    """null, -1 or left out: a fresh one."""
    stop: Annotated[str | ListOf[str] | None, one_of("a text or a list of texts")] = None
    stop_token_ids: ListOf[int] | None = None
    allowed_token_ids: ListOf[int] | None = None
    bad_words: ListOf[str] | None = None
    """Words that must not appear, at the beginning of the text or after a space."""
    no_repeat_ngram_size: int | None = None
    """No run of so many tokens comes a second time, the prompt's included; null or left out: the model's default."""
    encoder_no_repeat_ngram_size: int | None = None
    """No run of so many tokens of what the encoder reads (of the prompt, where there is none) is said."""
    include_stop_str_in_output: bool | None = also_called("include_stop_str_in_output")
    """true: the text ends after its stop string instead of before it."""
    skip_special_tokens: bool | None = None
    """false: special tokens are shown in the text."""
    truncate_prompt_tokens: int | None = None
    """Number of tokens to keep from the end of the prompt; -1: as many as leave room for max_tokens."""
    prompt_logprobs: int | None = None
    """Number of best tokens whose log-probabilities are returned beside each prompt token's own."""
    return_token_ids: bool | None = None
    """true: the reply also has ``token_ids`` and ``prompt_token_ids``."""
    return_tokens_as_token_ids: bool | None = None
    """true: log-probabilities name tokens as ``token_id:ID``."""
    min_tokens: int | None = also_called("min_tokens")
    ignore_eos: bool | None = None
    n: int | None = None
    use_beam_search: bool | None = None
    """true: look for the ``n`` likeliest outputs instead of drawing tokens."""
    beam_width: int | None = None
    """Beams that are searched, at least ``n``; left out: ``n``. Means ``use_beam_search``."""
    length_penalty: float | None = None
    """In beam search, scores are divided by the output's length to this power."""
    early_stopping: Annotated[bool | Literal["never"] | None, one_of('true, false or "never"')] = None
    """In beam search: true, stop as soon as as many outputs as there are beams have ended; "never", when no better one
    can come."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None
    prediction: Prediction | None = None
    """Helps drafters to guess; changes only the speed, not the output."""
    cache_salt: str | None = Field(default=None, max_length=200)
    """Only requests with the same salt (and the same key) share what was computed for a common prefix."""
    id_slot: int | None = None
    """The slot that remembers this request, to be saved or erased; -1 or left out: one that holds a like text, or that
    was used longest ago."""
    response_format: ResponseFormat | None = None
    thinking_token_budget: int | None = None
    """Most tokens of a thought; then the mark that ends it is forced."""
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices = None
    json_schema: dict[str, Any] | bool | str | None = None
    """llama.cpp's and SGLang's name for ``structured_outputs.json``."""
    regex: str | None = None
    """SGLang's name for ``structured_outputs.regex``."""

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def wants_spec_decode_metrics(self, settings: ServerSettings) -> bool:
        """Whether the reply says how guesses fared: where the server always does, or this request asks for it."""
        return settings.spec_decode_metrics or (self.speculation is not None and self.speculation.metrics)

    def wishes(self, otherwise: SpeculationParams) -> SpeculationParams:
        """How this request is drafted; ``otherwise`` holds the defaults."""
        wanted = (self.speculation or Speculation()).params(otherwise)
        return wanted if self.prediction is None else replace(wanted, prediction=self.prediction.text)

    def own_name(self, field: str | None) -> str | None:
        """The name that this request uses for a parameter with several names."""
        if field == "structured_outputs":
            return next((name for name in _STRUCTURES if getattr(self, name) is not None), field)
        return field

    def sampling(
        self,
        settings: ServerSettings,
        defaults: SamplingDefaults,
        max_tokens: int | None,
        logprobs: int | None,
        most: int | None = None,
    ) -> SamplingParams:
        """The engine's sampling parameters. ``max_tokens``: of the request; ``most``: where neither it nor the model's
        ``defaults`` say.

        Raises:
            RequestError: a value is outside what the engine or this server allows.
        """
        refuse_foreign(self.model_extra or {}, self)
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs cannot be streamed; leave stream out.", "prompt_logprobs")
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if self.n is not None and not 1 <= self.n <= settings.max_samples:
            raise RequestError(f"n is {self.n}; it must lie in [1, {settings.max_samples}].", "n")
        for name, count in (("logprobs", logprobs or 0), ("prompt_logprobs", self.prompt_logprobs or 0)):
            if not 0 <= count <= settings.max_logprobs:
                raise RequestError(f"{name} is {count}; it must lie in [0, {settings.max_logprobs}].", name)
        number, length = "the number of entries of ", "the length of an entry of "
        words = self.bad_words or ()
        _at_most("logit_bias", len(self.logit_bias or ()), settings.max_logit_bias, number)
        _at_most("stop", len(stops), settings.max_stops, number)
        _at_most("stop_token_ids", len(self.stop_token_ids or ()), settings.max_logit_bias, number)
        _at_most("stop", sum(map(len, stops)), settings.max_stop_characters, "the length of all entries of ")
        _at_most("bad_words", len(words), settings.max_logit_bias, number)
        _at_most("stop", max(map(len, stops), default=0), settings.max_stop_length, length)
        _at_most("bad_words", max(map(len, words), default=0), settings.max_stop_length, length)
        given = {name: value for name in _SAME if (value := getattr(self, name)) is not None}
        given |= {
            "stop": tuple(stops),
            "seed": None if self.seed in (None, -1) else self.seed % 2**64,
            "logprobs": logprobs,
            "structured_outputs": self.structure(settings),
        }
        if max_tokens is not None:
            given["max_tokens"] = max_tokens
        if self.repeat_last_n == 0:
            given["repetition_penalty"] = 1.0
        return defaults.params(given, {"max_tokens": most})

    def formats_text(self) -> bool:
        """Whether ``response_format`` asks for more than text."""
        return self.response_format is not None and self.response_format.type != "text"

    def structure(self, settings: ServerSettings) -> StructuredOutputsParams | None:
        """What form the output must have, whichever field asks for it.

        Raises:
            RequestError: several fields ask for one, or the wish is wrong or too long.
        """
        guided: dict[str, Any] = {"json": self.guided_json, "regex": self.guided_regex, "choice": self.guided_choice}
        bare: dict[str, Any] = {"json": self.json_schema, "regex": self.regex}
        asked = [wanted for wanted in (guided, bare) if any(value is not None for value in wanted.values())]
        if self.structured_outputs is not None:
            asked.append(self.structured_outputs.model_dump(by_alias=True, exclude_none=True))
        if self.response_format is not None and self.formats_text():
            schema = self.response_format.bare_schema
            if self.response_format.json_schema is not None:
                schema = self.response_format.json_schema.json_schema
            elif schema is None and self.response_format.type == "json_schema":
                raise RequestError("response_format.json_schema is missing; give the schema.", "response_format")
            asked.append({"json_object": True} if schema is None else {"json": schema})
        if not asked:
            return None
        if len(asked) > 1:
            raise RequestError("several fields ask for a structured output; keep one of them.")
        structure = StructuredOutputsParams(**asked[0])
        _at_most(
            "structured_outputs", structure.size, settings.max_schema_length, "the length of what is asked for by "
        )
        return structure


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: Annotated[
        str | ListOf[int] | ListOf[str] | ListOf[ListOf[int]],
        one_of("a text, a list of token ids, or a list of either"),
    ]
    echo: bool | None = None
    add_special_tokens: bool | None = None
    """false: a text is read without the special tokens that the tokenizer adds."""
    logprobs: int | None = None
    decoder_prompt: Annotated[str | ListOf[TokenId] | None, one_of("a text or a list of token ids")] = None
    """Of a model with an encoder, which reads the prompt: what the output begins with, behind the start token."""
    src_lang: str | None = None
    tgt_lang: str | None = None
    """Languages of the prompt and of the output, of a model that translates."""
    suffix: str | None = None
    best_of: int | None = None


class DetokenizeBody(Body):
    """``POST /detokenize``."""

    tokens: ListOf[TokenId]
    model: str | None = Field(default=None, max_length=500)


class SlotBody(Body):
    """``POST /slots/N``."""

    filename: str | None = Field(default=None, max_length=1000)
    """In the directory of --slot-save-path."""
    model: str | None = Field(default=None, max_length=500)
    """Whose slot it is, where several models are served."""


class DrafterTextsBody(Body):
    """``POST /v1/drafter/texts``."""

    texts: Annotated[
        str | ListOf[int] | ListOf[str] | ListOf[ListOf[int]],
        one_of("a text, a list of token ids, or a list of either"),
    ]
    """What drafters may copy from, such as a document that is going to be edited."""
    model: str | None = Field(default=None, max_length=500)
    cache_salt: str | None = Field(default=None, max_length=200)
    """Only requests with the same salt (and the same key) are guessed for with them."""


class LoadAdapterBody(Body):
    """``POST /v1/load_lora_adapter``."""

    lora_name: str = Field(min_length=1, max_length=500)
    lora_path: str = Field(min_length=1, max_length=4000)
    model: str | None = Field(default=None, max_length=500)
    """Whose adapter it is, where several models are served."""


class UnloadAdapterBody(Body):
    """``POST /v1/unload_lora_adapter``."""

    lora_name: str = Field(min_length=1, max_length=500)
    lora_int_id: int | None = None
    """Not looked at: names tell adapters apart."""


def _at_most(name: str, value: int, bound: int, what: str = "") -> None:
    if value > bound:
        raise RequestError(f"{what}{name} is {value}; this server allows {bound}.", name)
