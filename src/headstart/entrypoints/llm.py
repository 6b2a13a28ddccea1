"""The library's front door: load a model, decode text with it, plainly or with speculation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any, Self

from headstart.common.enumerations import Numerics, named
from headstart.common.installed import AddedMethod
from headstart.common.memory import MemoryUse
from headstart.common.options import takes, tells_options
from headstart.common.other_names import FOREIGN_CALLS, pass_over
from headstart.common.phases import phase
from headstart.drafting.base import SpeculationParams
from headstart.engine.counts import Counter, Vector
from headstart.engine.engine import Engine
from headstart.engine.outputs import RequestOutput
from headstart.entrypoints.adapters import Adapters, AdapterWish
from headstart.entrypoints.beam_search import BeamSearchOutput, BeamSearchParams
from headstart.entrypoints.encoder_prompt import encoded_for
from headstart.entrypoints.engine_making import make_engine
from headstart.entrypoints.engine_options import EngineOptions
from headstart.entrypoints.prompts import (
    EncodedPrompt,
    Message,
    Prompt,
    encoded,
    encoded_chat,
    listed,
    listed_chats,
    naming,
)
from headstart.entrypoints.request import Sample, StreamPiece, require_lossless
from headstart.entrypoints.sample_making import SampleMaker
from headstart.entrypoints.turns import CLOSED, Turns
from headstart.errors import ConfigError, RequestError, require_utf8
from headstart.loading.model import Model, require_numerics
from headstart.models.generation_config import sampling_defaults
from headstart.passes.adapters import salted
from headstart.sampling.noise import fresh_seed
from headstart.sampling.params import SamplingParams
from headstart.text.answers.choosing import choose
from headstart.text.answers.model_answers import ModelAnswers
from headstart.text.chat_tokenizer import ChatTokenizer
from headstart.text.grammar import GrammarCompiler

OnCommit = Callable[[StreamPiece], None]


@tells_options(EngineOptions)
class LLM:
    """A target with a drafter, ready to decode. Several threads may call it; their requests decode together.
    ``close``, or the end of ``with LLM(...) as llm:``, frees its memory.

    Its arguments are the fields of ``EngineOptions``, ``model`` and ``drafter`` also by position. vLLM's names for them
    are understood: ``max_model_len``, ``max_num_seqs``, ``dtype``, ``speculative_config`` and so on.

    Raises:
        ConfigError, CheckpointError: see the message; nothing is half-loaded.
    """

    @takes(EngineOptions)
    def __init__(self, options: EngineOptions) -> None:
        drafter, drafter_options = options.check()
        numerics = named(Numerics, "numerics", options.numerics)
        self.speculation = options.requests_speculation()
        # Greedy requests lose nothing by some of the lossy rules; others are refused when they come.
        require_lossless(numerics, self.speculation, SamplingParams(temperature=0))
        with phase(f"Loading {options.model}") if isinstance(options.model, str | Path) else nullcontext():
            target = options.load_target()
        require_numerics(target, options.numerics)
        self.sampling_defaults = sampling_defaults(target.checkpoint, options.generation_config)
        """What a request gets that leaves sampling parameters out."""
        template = target.chat_template
        form = choose(template.source, template.response_template, options.tool_parser, options.reasoning_parser)
        self.answers = ModelAnswers(form, target.tokenizer)
        """How the model's answers are read: its calls of tools, and its thoughts."""
        made = make_engine(target, options, drafter, drafter_options)
        self.notices = made.notices
        """What a user may want to know of how it was set up, a sentence each: which trained head drafts, and why."""
        self.drafter_name = made.engine.drafters.default
        self._model: Model | None = target
        self._turns = Turns(made.engine)
        self._texts = made.texts
        self.adapters = Adapters(lambda: self.model)
        """Those that requests may name."""
        loaded = [self.adapters.load(name or Path(path).stem, path) for name, path in options.adapters.items()]
        self.samples = SampleMaker(
            lambda: self.model,
            made.engine.limits,
            self.answers,
            self.adapters,
            numerics,
            self.speculation,
            fresh_seed if options.seed is None else partial(Random(options.seed).getrandbits, 64),
            lambda: self.grammars,
            loaded[0] if "" in options.adapters else None,
        )
        """The samples of a prompt, ready for ``engine.add``: for callers that run the engine themselves."""
        self.beside: dict[str, Any] = {}
        """What other packages keep beside the model until ``close``, by names of their own."""

    @classmethod
    def from_options(cls, options: EngineOptions) -> Self:
        """Of options that were put together before."""
        return cls(**options.given(EngineOptions))

    @classmethod
    def from_engine_args(cls, engine_args: EngineOptions) -> Self:
        """The same, by the name that vLLM has for it (``EngineArgs``)."""
        return cls.from_options(engine_args)

    @property
    def model(self) -> Model:
        """The target."""
        if self._model is None:
            raise ConfigError(CLOSED)
        return self._model

    @property
    def engine(self) -> Engine:
        """The queue of its requests."""
        return self._turns.engine

    @property
    def memory(self) -> MemoryUse:
        """Memory of the weights and caches of target and drafters."""
        runner, pool = self.engine.runner, self.engine.drafters
        return MemoryUse(self.model.backend.nbytes, runner.cache.storage.nbytes, pool.nbytes)

    def adapted(self, wish: AdapterWish) -> Self:
        """The same engine, whose requests have this adapter where they name none; None: as they have here."""
        other = copy(self)
        other.samples = self.samples.adapted(wish)
        return other

    def get_tokenizer(self) -> ChatTokenizer:
        """The target's tokenizer with its chat template, by the name that vLLM has for it."""
        return ChatTokenizer(self.model.tokenizer, self.model.chat_template)

    def get_metrics(self) -> list[Counter | Vector]:
        """What has been decoded since the start, in the form and by the names that vLLM has for it: prompt and output
        tokens, drafts, guesses and those accepted, also by position."""
        return self.engine.counts.metrics()

    def get_default_sampling_params(self) -> SamplingParams:
        """What a call without sampling parameters gets, by the name that vLLM has for it."""
        return self.sampling_defaults.params({})

    def close(self) -> None:
        """End all requests (finish reason "abort") and free weights, caches and drafters. Whatever else is called from
        then on raises ConfigError. A model that was given loaded stays with its owner."""
        self._turns.close()
        self._model, self.samples = None, replace(self.samples, adapter=None)
        self.adapters.clear()
        self.beside.clear()
        self._texts.close()
        vars(self).pop("grammars", None)
        # Caches and drafters hold on to each other in circles.
        gc.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: SpeculationParams | None = None,
        on_commit: OnCommit | None = None,
        strict: bool = True,
        cache_salt: str = "",
        lora_request: AdapterWish | Sequence[AdapterWish] = None,
        **elsewhere: Any,
    ) -> list[RequestOutput]:
        """Decode prompts together.

        Args:
            prompts: texts, lists of token ids, vLLM's dictionaries, or what ``encode`` returns; one or several.
            sampling_params: for all prompts, or one for each; None: ``get_default_sampling_params``.
            speculation: overrides the engine's for this call.
            on_commit: called with each piece as it is committed.
            strict: False: a prompt that cannot be served gets finish reason "error", and the others are decoded.
            cache_salt: only requests of the same salt share cached prefixes, and what drafters remember of them.
            lora_request: the adapter to decode with, or the name of one that is loaded; one for all prompts, or one for
                each.
            elsewhere: vLLM's further arguments (``use_tqdm`` ...), where they ask for nothing.

        Returns:
            One output for each prompt, in order. A prompt that fails while it decodes gets finish reason "error".

        Raises:
            RequestError: a prompt cannot be served (if strict), or a parameter does not fit the model; raised before
                anything is decoded.
        """
        pass_over(elsewhere, FOREIGN_CALLS, "generate")
        encoded = [self.encode(prompt) for prompt in listed(prompts)]
        return self._run(encoded, sampling_params, speculation, on_commit, strict, cache_salt, lora_request)

    def add_drafter_texts(self, texts: Prompt | Sequence[Prompt], *, cache_salt: str = "") -> int:
        """Give drafters texts to copy from: a document that is going to be edited, earlier answers, code. They change
        what is guessed, never what is said. Any thread may call it, at any time.

        Args:
            texts: one or several, or their token ids.
            cache_salt: only requests of the same salt are guessed for with them.

        Returns:
            Tokens that were taken. The oldest go where a salt's texts exceed its share of ``drafter_store_bytes``.

        Raises:
            RequestError: a text is none, or no drafter of this engine copies from texts.
        """
        tokenizer = self.model.tokenizer
        try:
            taken = [encoded(each, tokenizer, False, may_be_empty=True).token_ids for each in listed(texts)]
            require_utf8(cache_salt, "cache_salt")
            return self._texts.add_all(salted(cache_salt, self.samples.adapter), taken)
        except RequestError as error:
            error.field = "cache_salt" if error.field == "cache_salt" else "texts"
            raise

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        speculation: SpeculationParams | None = None,
        lora_request: AdapterWish | Sequence[AdapterWish] = None,
        **elsewhere: Any,
    ) -> list[BeamSearchOutput]:
        """The likeliest outputs of each prompt, by the name and in the form that vLLM has for it.

        ``generate`` with ``SamplingParams(beam_width=...)`` finds the same, and takes further parameters.

        Raises:
            RequestError: a prompt cannot be served, or a parameter is out of range.
        """
        pass_over(elsewhere, FOREIGN_CALLS, "beam_search")
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params is {params!s:.40}; give BeamSearchParams.", "params")
        outputs = self.generate(prompts, params.sampling(), speculation=speculation, lora_request=lora_request)
        return [BeamSearchOutput.of(output) for output in outputs]

    def decode(self, samples: Sequence[Sample]) -> None:
        """Decode what ``samples`` made to its end; each sample says how it ended.

        Raises:
            RequestError: one cannot be served; none is decoded further then.
        """
        try:
            self._turns.admit(samples)
            for _ in self._turns.rounds(samples, False):
                pass
        finally:
            self._turns.abort(samples)

    transcribe = AddedMethod()
    """What recordings say: ``headstart_speech.front_doors.transcribe``."""
    transcription = AddedMethod()
    """A recording that has not been heard yet: ``headstart_speech.front_doors.transcription``."""

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        speculation: SpeculationParams | None = None,
        on_commit: OnCommit | None = None,
        strict: bool = True,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        lora_request: AdapterWish | Sequence[AdapterWish] = None,
        **elsewhere: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several together, through the model's chat template; otherwise as ``generate``.
        Outputs hold the text as the model wrote it, thoughts and calls of tools included; a server tells them apart.

        ``tools``: JSON schemas of functions; ``chat_template_kwargs``: what else the template knows;
        ``add_generation_prompt``, ``continue_final_message``: as ``ChatTemplate.render``.
        """
        pass_over(elsewhere, FOREIGN_CALLS, "chat")
        ends = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        chosen = {name: value for name, value in ends.items() if value is not None}
        # vLLM's code says both: what is continued is no new message.
        if continue_final_message and add_generation_prompt is False:
            del chosen["add_generation_prompt"]
        chat_template_kwargs = {**(chat_template_kwargs or {}), **chosen}
        encoded = [self.encode_chat(chat, tools, chat_template_kwargs) for chat in listed_chats(messages)]
        return self._run(encoded, sampling_params, speculation, on_commit, strict, lora_request=lora_request)

    def stream(
        self,
        prompt: Prompt | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        speculation: SpeculationParams | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[StreamPiece]:
        """Decode one prompt, or answer one conversation, piece by piece as rounds commit.

        Closing the iterator early ends the request and frees what it held; so does ``stopped``, which is asked after
        each pass, those that read the prompt included.

        Raises:
            RequestError: the prompt cannot be served, or its sequence failed.
        """
        if prompt is None and messages is not None:
            request = self.encode_chat(messages)
        elif prompt is not None and messages is None:
            request = self.encode(prompt)
        else:
            raise RequestError("give either a prompt or messages.", "prompt")
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        samples = self.samples.of_prompts([request], params, speculation)
        try:
            self._turns.admit(samples)
            for pieces in self._turns.rounds(samples, True):
                yield from pieces
                if stopped():
                    break
            for sample in samples:
                if sample.sequence.error is not None:
                    raise RequestError(sample.sequence.error)
        finally:
            self._turns.abort(samples)

    def encode(self, prompt: Prompt, add_special_tokens: bool = True) -> EncodedPrompt:
        """A prompt's token ids, with or without the special tokens that the tokenizer adds to a text.

        Raises:
            RequestError: the text has no UTF-8 form, or the prompt is neither a text nor token ids.
        """
        return encoded_for(self.model.config, prompt, self.model.tokenizer, add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> EncodedPrompt:
        """A conversation's token ids, through the target's chat template.

        Raises:
            RequestError: the model has no chat template, or the template cannot render these messages.
        """
        model = self.model
        chat = encoded_chat(messages, model.tokenizer, model.chat_template, tools, chat_template_kwargs)
        return encoded_for(model.config, chat, model.tokenizer)

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """What compiles structured outputs before requests ask for them. Making it looks at the whole vocabulary, which
        keeps all threads waiting meanwhile.

        Raises:
            RequestError: the package for it is not installed, or the model has no end-of-sequence token.
        """
        model = self.model
        return GrammarCompiler(model.tokenizer, model.config.vocab_size, model.eos_token_ids)

    def _run(
        self,
        prompts: Sequence[EncodedPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        speculation: SpeculationParams | None,
        on_commit: OnCommit | None,
        strict: bool,
        cache_salt: str = "",
        lora_request: AdapterWish | Sequence[AdapterWish] = None,
    ) -> list[RequestOutput]:
        params = self.get_default_sampling_params() if params is None else params
        samples = self.samples.of_prompts(prompts, params, speculation, cache_salt, lora_request)
        admitted = []
        try:
            for sample in samples:
                try:
                    with naming(sample.prompt_index, len(prompts) if strict else 1):
                        self._turns.admit([sample])
                    admitted.append(sample)
                except RequestError as error:
                    if strict:
                        raise
                    sample.sequence.fail(str(error), refused=True, field=error.field)
            for pieces in self._turns.rounds(admitted, on_commit is not None):
                for piece in pieces:
                    on_commit(piece)  # type: ignore[misc]
        finally:
            self._turns.abort(samples)
        together = [list(own) for _, own in groupby(samples, attrgetter("prompt_index"))]
        return [own[0].output(own) for own in together]
