"""One sample of one prompt on its way through the engine: token ids inside, text outside."""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass, field, replace

from headstart.common.enumerations import Numerics
from headstart.drafting.base import SpeculationParams
from headstart.engine.constraint import TokenConstraint
from headstart.engine.output_rules import OutputRules
from headstart.engine.outputs import Completion, FinishReason, RequestMetrics, RequestOutput, TokenLogprobs, TokenOrigin
from headstart.engine.sequence import Sequence
from headstart.engine.trace import RoundTrace, Trace
from headstart.entrypoints.prompts import EncodedPrompt
from headstart.errors import RequestError, require_utf8
from headstart.loading.model import Model
from headstart.passes.adapters import Adapter, salted
from headstart.sampling.params import SamplingParams
from headstart.text.bad_words import spellings
from headstart.text.detokenizer import CommittedText, IncrementalDetokenizer

_LONGEST_PREDICTION = 1 << 14
"""Most tokens of a predicted output that are learnt, from its beginning: each takes about 10 microseconds."""


@dataclass(frozen=True)
class StreamPiece:
    """What one round added to one sample. Prints as its text."""

    text: str
    """Text that became final; empty while a character or a possible stop string is incomplete."""
    token_ids: list[int]
    origins: list[TokenOrigin]
    """[token] how each came to be."""
    rejected: list[int | None]
    """[token] the drafter's first guess in its place, if that was rejected."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """[token] if requested."""
    text_offsets: list[int] = field(default_factory=list)
    """[token] where its text begins in the whole output, in characters."""
    rounds: list[RoundTrace] = field(default_factory=list)
    """The rounds that produced these tokens, if requested."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """As in ``RequestOutput``; in a sample's first piece, if requested."""
    prompt_index: int = 0
    sample: int = 0
    finish_reason: FinishReason | None = None
    """Set in the last piece."""
    completion: Completion | None = None
    """The whole result, with its counts; set in the last piece."""

    def __str__(self) -> str:
        return self.text


class Sample:
    """A sequence and the text it has become.

    Args:
        model: the target.
        prompt: of the request; ``prompt_index`` is its place among the prompts of a call.
        index: which of the prompt's ``n`` samples this is.
        sequence_id: unique in the engine.
        seed: in [0, 2**64), resolved.
        cache_salt: only requests of the same salt share cached prefixes.
        trace: record what each round looked like.
        constraint: limits what the output may be, and is not shared with other samples; None: no limits.
        shown: special tokens that are seen in the text.
        adapter: what the target is changed by.

    Raises:
        RequestError: a parameter does not fit the model.
    """

    def __init__(
        self,
        model: Model,
        prompt: EncodedPrompt,
        prompt_index: int,
        index: int,
        sequence_id: int,
        params: SamplingParams,
        seed: int,
        speculation: SpeculationParams,
        cache_salt: str = "",
        trace: bool = False,
        constraint: TokenConstraint | None = None,
        shown: frozenset[int] = frozenset(),
        adapter: Adapter | None = None,
    ) -> None:
        vocab_size, encoder = model.config.vocab_size, model.config.encoder
        require_utf8(cache_salt, "cache_salt")
        _require_known(prompt.token_ids, vocab_size, "this model's")
        if encoder is not None and prompt.source is not None:
            _require_known(prompt.source.tokens, encoder.vocab_size or vocab_size, "its encoder's")
        if params.bad_words:
            banned = params.banned_sequences + spellings(params.bad_words, model.tokenizer)
            params = replace(params, bad_words=(), banned_sequences=banned)
        demands = model.demands
        if demands.never:
            never = tuple(tokens for tokens in demands.never if max(tokens) < vocab_size)
            params = replace(params, banned_sequences=params.banned_sequences + never)
        rules = OutputRules(
            vocab_size,
            demands.never_first,
            None if params.ignore_eos else demands.last,
            self._most_tokens,
            constraint,
            demands.first if len(prompt.token_ids) == 1 else None,
        )
        constraint = rules if rules.applies else constraint
        if isinstance(speculation.prediction, str):
            expected = model.tokenizer.encode(speculation.prediction, add_special_tokens=False, field="prediction")
            speculation = replace(speculation, prediction=tuple(expected[:_LONGEST_PREDICTION]))
        self._arrival, self._queued = time.time(), time.perf_counter()
        self._spell = model.tokenizer.token_text
        self.prompt = prompt
        self.prompt_index = prompt_index
        self.index = index
        self._text = CommittedText(IncrementalDetokenizer.of_request(model.tokenizer, prompt.token_ids, params, shown))
        self.sequence: Sequence = Sequence.of(
            sequence_id,
            prompt.token_ids,
            params,
            vocab_size=vocab_size,
            end_tokens=model.eos_token_ids,
            seed=seed,
            sample=index,
            kernels=model.backend.kit.rows,
            speculation=speculation,
            source=prompt.source,
            cache_salt=salted(cache_salt, adapter),
            adapter=adapter,
            trace=Trace() if trace else None,
            text=self._text,
            constraint=constraint,
        )
        self._shown_text = 0
        self._shown_tokens = 0
        self._shown_rounds = 0
        self._closed = False

    def next_piece(self) -> StreamPiece | None:
        """What has come since the last piece; None if nothing has. The last piece names the finish reason."""
        sequence = self.sequence
        if self._closed or (self._shown_tokens == sequence.num_output and not sequence.finished):
            return None
        text = self._final_text()
        rounds = [] if sequence.trace is None else sequence.trace.rounds[self._shown_rounds :]
        piece = StreamPiece(
            text=text[self._shown_text :],
            token_ids=sequence.tokens[sequence.prompt_length + self._shown_tokens :],
            origins=sequence.origins[self._shown_tokens :],
            rejected=sequence.rejected[self._shown_tokens :],
            logprobs=self._spelt(sequence.logprobs[self._shown_tokens :]),
            text_offsets=self.text_offsets[self._shown_tokens :],
            rounds=rounds,
            prompt_logprobs=None if self._shown_tokens else self.prompt_logprobs,
            prompt_index=self.prompt_index,
            sample=self.index,
            finish_reason=sequence.finish_reason,
            completion=self.completion() if sequence.finished else None,
        )
        self._shown_text = len(text)
        self._shown_tokens = sequence.num_output
        self._shown_rounds += len(rounds)
        self._closed = sequence.finished
        return piece

    @property
    def text_offsets(self) -> list[int]:
        """[output token] where its text begins in the output, in characters."""
        return self._text.offsets

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """As in ``RequestOutput``, as far as the prompt has been read."""
        wanted = self.sequence.params.prompt_logprobs is not None
        return [None, *self._spelt(self.sequence.prompt_logprobs)] if wanted else None

    def completion(self) -> Completion:
        """The result of a finished sequence."""
        sequence = self.sequence
        assert sequence.finish_reason is not None
        return Completion(
            index=self.index,
            text=self._final_text(),
            token_ids=sequence.output,
            finish_reason=sequence.finish_reason,
            stats=sequence.stats,
            origins=sequence.origins,
            logprobs=None if sequence.params.logprobs is None else self._spelt(sequence.logprobs),
            stop_reason=sequence.stop_reason,
            error=sequence.error,
            score=sequence.score,
        )

    def output(self, samples: abc.Sequence[Sample]) -> RequestOutput:
        """The output for this sample's prompt, of which these are all samples; they have ended."""
        return RequestOutput(
            self.prompt.text,
            self.prompt.token_ids,
            [sample.completion() for sample in samples],
            self.prompt_logprobs,
            str(self.sequence.id - self.index),
            self.prompt.source_text,
            self.prompt.source_token_ids,
            self.metrics(samples),
        )

    def metrics(self, samples: abc.Iterable[Sample]) -> RequestMetrics | None:
        """When what happened to its request, of which these are all samples; None: some have not ended."""
        ended = [sample.sequence for sample in samples]
        started = self.sequence.started
        if started is None or any(sequence.started is None or not sequence.finished for sequence in ended):
            return None
        return RequestMetrics(
            arrival_time=self._arrival,
            queued_ts=self._queued,
            scheduled_ts=started,
            first_token_ts=started + self.sequence.stats.prefill_seconds,
            last_token_ts=max((sequence.started or 0.0) + sequence.stats.seconds for sequence in ended),
            num_generation_tokens=sum(sequence.stats.tokens for sequence in ended),
        )

    def _spelt(self, entries: list[TokenLogprobs]) -> list[TokenLogprobs]:
        return [replace(entry, spell=self._spell) for entry in entries]

    def _most_tokens(self) -> int:
        return self.sequence.stops.max_tokens

    def _final_text(self) -> str:
        if self.sequence.finished:
            self._text.finish()
        return self._text.text


def require_lossless(numerics: Numerics, speculation: SpeculationParams, params: SamplingParams) -> None:
    """Refuse a lossy rule where exactness was asked for.

    Raises:
        RequestError: which.
    """
    lossy = speculation.lossy_for(params)
    if numerics is Numerics.EXACT and lossy is not None:
        raise RequestError(
            f"{lossy} {getattr(speculation, lossy)} is LOSSY, but numerics is 'exact'; leave one of the two out.", lossy
        )


def _require_known(tokens: abc.Sequence[int], vocab_size: int, whose: str) -> None:
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(f"the prompt holds token {token}; {whose} ids go from 0 to {vocab_size - 1}.", "prompt")
