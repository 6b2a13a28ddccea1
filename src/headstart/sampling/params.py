"""Sampling parameters of one request, validated once."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, Self

from headstart.common.other_names import FOREIGN_SAMPLING, passes_over
from headstart.errors import RequestError, require_utf8
from headstart.sampling.structured import StructuredOutputsParams

_INTEGER_FIELDS = ("top_k", "min_tokens", "n", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
_OPTIONAL_INTEGER_FIELDS = (
    *("beam_width", "max_tokens", "seed", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"),
    "thinking_token_budget",
)
_REAL_FIELDS = (
    "length_penalty",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_SWITCHES = ("use_beam_search", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_TOKEN_LISTS = ("allowed_token_ids", "banned_token_ids", "stop_token_ids")
_TEXT_LISTS = ("stop", "bad_words")

_LEAST_REAL, _LARGEST_REAL = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The smallest and the largest normal float32."""
_MAX_BEAMS = 256
_MAX_LENGTH_PENALTY = 5.0
"""Powers of a length beyond this leave nothing of a score in float32."""
_MAX_SAMPLES = 1 << 14
"""Per prompt: all samples are set up before the first one decodes."""


def _check(ok: bool, name: str, complaint: str) -> None:
    if not ok:
        raise RequestError(f"{name} {complaint}", name)


def _integer(name: str, value: Any) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise RequestError(f"{name} is {value!r}; it must be an integer.", name)


def _is_listed(value: object) -> bool:
    """A collection, but neither a text nor a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def _real(name: str, value: Any, what: str = "") -> float:
    try:
        number = math.nan if isinstance(value, (str, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    _check(math.isfinite(number), name, f"{what}is {value!r:.40}; it must be a finite number.")
    _check(abs(number) <= _LARGEST_REAL, name, f"{what}is {number:g}; it must be finite as float32, as logits are.")
    return number


def _token_id(name: str, token: Any) -> int:
    try:
        return int(token) if isinstance(token, str) else operator.index(token)
    except (TypeError, ValueError):
        raise RequestError(f"{name} names {token!r}; token ids are integers.", name) from None


def _token_ids(name: str, tokens: Any) -> tuple[int, ...]:
    _check(_is_listed(tokens), name, f"is {tokens!r:.40}; it must be a list of token ids.")
    return tuple(_token_id(name, token) for token in tokens)


def _texts(name: str, texts: Any) -> tuple[str, ...]:
    _check(
        isinstance(texts, str) or _is_listed(texts), name, f"is {texts!r:.40}; it must be a text or a list of texts."
    )
    listed = (texts,) if isinstance(texts, str) else tuple(texts)
    _check(all(isinstance(text, str) and text for text in listed), name, "must hold strings, none of them empty.")
    for text in listed:
        require_utf8(text, name)
    return listed


@passes_over(FOREIGN_SAMPLING)
@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the target's logits, and when to stop.

    Every field acts on the target's law before verification, so speculation changes nothing. The order of the
    transforms is vLLM's: structured outputs; allowed and banned tokens, banned sequences, repeated n-grams, min_tokens,
    logit bias; then repetition, frequency and presence penalties; then (greedy stops here) temperature, min-p, top-k,
    top-p.
    """

    temperature: float = 1.0
    """0 is greedy: the highest logit, and the lowest id among equals."""
    top_k: int = 0
    """Keep the k highest logits (ties with the k-th stay); 0, or -1 as in vLLM, keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose total probability reaches top_p; 0 keeps the first alone."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least min_p times the highest."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens in the prompt or the output."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the output contains, once."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it occurs in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to a token's logit; -inf bans it."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these may be drawn; None allows all."""
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    """Words that must not appear, at the beginning of the text or after a space. As in vLLM, no token may complete the
    tokens into which a word is cut; other ways to spell the word are not banned."""
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not complete (the prompt does not count). ``bad_words`` are turned into
    these."""
    no_repeat_ngram_size: int = 0
    """No run of so many tokens comes a second time, in prompt and output together (transformers' field; of a model with
    an encoder, what the decoder began with is the prompt); 0: any may."""
    encoder_no_repeat_ngram_size: int = 0
    """No run of so many tokens of what the encoder reads comes in the output; where there is no encoder, of the prompt.
    0: any may."""
    min_tokens: int = 0
    """Output tokens before which no end-of-sequence or stop token may come."""
    max_tokens: int | None = 128
    """Most output tokens; None, or -1 as in llama.cpp: as many as fit into the context."""
    stop: tuple[str, ...] = ()
    """Stop strings: the text ends before the first of them."""
    include_stop_str_in_output: bool = False
    """End the text after the stop string instead, and keep the text of a stop token."""
    stop_token_ids: tuple[int, ...] = ()
    """End the sequence like an end-of-sequence token does."""
    ignore_eos: bool = False
    seed: int | None = None
    """None, or -1 as in vLLM and llama.cpp, draws a fresh 64-bit seed for the request."""
    n: int = 1
    """Independent samples of the same prompt; in beam search, how many of the best outputs are returned."""
    use_beam_search: bool = False
    """Look for the likeliest outputs, as transformers' ``generate(num_beams=...)`` does, instead of drawing tokens.
    Penalties, bans and biases act on log-probabilities. Always at temperature 1: ``temperature`` may say 0 or 1."""
    beam_width: int | None = None
    """Beams that are searched, at least ``n``; asks for beam search by itself. None: ``n``, if beams are searched."""
    length_penalty: float = 1.0
    """In beam search, scores are divided by the output's length to this power: above 0 favours long outputs."""
    early_stopping: bool | Literal["never"] = False
    """When beam search ends: True, as soon as as many outputs as there are beams have ended; False, when the best beam,
    at its present length, falls behind all of them; "never", when no beam can overtake them at any length."""
    logprobs: int | None = None
    """Number of best tokens whose log-probabilities are returned beside the chosen token's, before any transform; -1:
    all of the vocabulary, as in vLLM; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for each prompt token; None: none. The whole prompt is then computed, whatever is cached."""
    truncate_prompt_tokens: int | None = None
    """Number of tokens to keep from the end of the prompt; -1: as many as leave room for max_tokens. None: all."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    thinking_token_budget: int | None = None
    """Most tokens of a thought, after which the mark that ends it is forced; None: any number. The law of all other
    tokens stays as it is."""
    structured_outputs: StructuredOutputsParams | None = None
    """What form the whole output must have; applied to the logits before every other transform."""

    def __post_init__(self) -> None:
        for name in ("banned_token_ids", "banned_sequences", "stop_token_ids", *_TEXT_LISTS, "logit_bias"):
            # Other libraries use None for "nothing".
            if getattr(self, name) is None:
                object.__setattr__(self, name, {} if name == "logit_bias" else ())
        self._convert()
        for name in ("max_tokens", "seed"):
            if getattr(self, name) == -1:
                object.__setattr__(self, name, None)
        _check(self.temperature >= 0, "temperature", f"is {self.temperature}; it must be 0 (greedy) or more.")
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        _check(self.top_k >= 0, "top_k", f"is {self.top_k}; it must be 0 (off) or more.")
        _check(0 <= self.top_p <= 1, "top_p", f"is {self.top_p}; it must lie in [0, 1].")
        _check(0 <= self.min_p <= 1, "min_p", f"is {self.min_p}; it must lie in [0, 1].")
        _check(
            self.repetition_penalty >= _LEAST_REAL,
            "repetition_penalty",
            f"is {self.repetition_penalty}; it must be above 0, and at least {_LEAST_REAL:.3g}.",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _check(abs(getattr(self, name)) <= 2, name, f"is {getattr(self, name)}; it must lie in [-2, 2].")
        _check(self.allowed_token_ids != (), "allowed_token_ids", "is empty; name at least one token or leave it out.")
        _check(all(self.banned_sequences), "banned_sequences", "holds an empty one; name the tokens that are banned.")
        for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
            _check(getattr(self, name) >= 0, name, f"is {getattr(self, name)}; it must be 0 (off) or more.")
        budget = self.thinking_token_budget
        _check(budget is None or budget >= 0, "thinking_token_budget", f"is {budget}; it must be 0 or more.")
        _check(self.min_tokens >= 0, "min_tokens", f"is {self.min_tokens}; it must be 0 or more.")
        if self.max_tokens is not None:
            _check(self.max_tokens >= 1, "max_tokens", f"is {self.max_tokens}; it must be 1 or more.")
            _check(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"is {self.min_tokens}, above max_tokens {self.max_tokens}; lower it.",
            )
        _check(1 <= self.n <= _MAX_SAMPLES, "n", f"is {self.n}; it must lie in [1, {_MAX_SAMPLES}].")
        self._check_beams()
        if self.seed is not None:
            _check(0 <= self.seed < 2**64, "seed", f"is {self.seed}; it must lie in [0, 2**64).")
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            _check(
                wanted is None or -1 <= wanted <= 100, name, f"is {wanted}; it must lie in [0, 100], or be -1 for all."
            )
        kept = self.truncate_prompt_tokens
        _check(
            kept is None or kept == -1 or kept >= 1,
            "truncate_prompt_tokens",
            f"is {kept}; it must be 1 or more, or -1 for as many as there is room for.",
        )
        if self.structured_outputs is not None:
            _check(
                isinstance(self.structured_outputs, StructuredOutputsParams),
                "structured_outputs",
                f"is {self.structured_outputs!r}; it must be StructuredOutputsParams.",
            )
            _check(not self.ignore_eos, "ignore_eos", "is given; structured_outputs end by themselves. Leave one out.")

    def _check_beams(self) -> None:
        _check(
            abs(self.length_penalty) <= _MAX_LENGTH_PENALTY,
            "length_penalty",
            f"is {self.length_penalty}; it must lie in [-{_MAX_LENGTH_PENALTY:g}, {_MAX_LENGTH_PENALTY:g}].",
        )
        _check(
            isinstance(self.early_stopping, bool) or self.early_stopping == "never",
            "early_stopping",
            f"is {self.early_stopping!r}; it must be True, False or 'never'.",
        )
        if self.beam_width is None and not self.use_beam_search:
            for name, usual in (("length_penalty", 1.0), ("early_stopping", False)):
                value = getattr(self, name)
                _check(value == usual, name, f"is {value!r}, which beam search alone reads; give a beam_width, too.")
            return
        width = self.n if self.beam_width is None else self.beam_width
        _check(1 <= width <= _MAX_BEAMS, "beam_width", f"is {width}; it must lie in [1, {_MAX_BEAMS}].")
        _check(self.n <= width, "n", f"is {self.n}, more than the {width} beams that are searched; raise beam_width.")
        _check(
            self.temperature in (0, 1),
            "temperature",
            f"is {self.temperature}, but beam search draws nothing; leave it out, or give 0.",
        )
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            value = getattr(self, name)
            _check(value == off, name, f"is {value}, but beam search draws nothing; leave it out.")
        _check(
            self.structured_outputs is None,
            "structured_outputs",
            "are given, but beam search follows no grammar; leave one of the two out.",
        )
        for name, value in (("use_beam_search", True), ("beam_width", width), ("temperature", 0.0)):
            object.__setattr__(self, name, value)

    def _convert(self) -> None:
        """Convert every field to its declared type, or refuse it."""
        for name in _TOKEN_LISTS:
            tokens = getattr(self, name)
            if tokens is not None:
                object.__setattr__(self, name, _token_ids(name, tokens))
        sequences: Any = self.banned_sequences
        _check(
            _is_listed(sequences), "banned_sequences", f"is {sequences!r:.40}; it must be a list of lists of token ids."
        )
        object.__setattr__(
            self, "banned_sequences", tuple(_token_ids("banned_sequences", tokens) for tokens in sequences)
        )
        _check(
            isinstance(self.logit_bias, Mapping),
            "logit_bias",
            f"is {self.logit_bias!r:.40}; it must map ids to numbers.",
        )
        bias = {_token_id("logit_bias", token): value for token, value in self.logit_bias.items()}
        for token, value in bias.items():
            bias[token] = value if value == -math.inf else _real("logit_bias", value, f"of token {token} ")
        object.__setattr__(self, "logit_bias", bias)
        for name in _TEXT_LISTS:
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        for name in _INTEGER_FIELDS:
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in _OPTIONAL_INTEGER_FIELDS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in _REAL_FIELDS:
            object.__setattr__(self, name, _real(name, getattr(self, name)))
        for name in _SWITCHES:
            _check(
                isinstance(getattr(self, name), bool), name, f"is {getattr(self, name)!r}; it must be True or False."
            )

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """Of fields some of which are None, which stands for their defaults."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    def clone(self) -> Self:
        """The same again. Parameters never change: ``dataclasses.replace`` makes others of them."""
        return replace(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids outside ``[0, vocab_size)``, before they can touch a logit.

        Raises:
            RequestError: names the field and the id.
        """
        named: dict[str, Iterable[int]] = {name: getattr(self, name) or () for name in (*_TOKEN_LISTS, "logit_bias")}
        named["banned_sequences"] = chain.from_iterable(self.banned_sequences)
        for name, tokens in named.items():
            for token in tokens:
                _check(
                    0 <= token < vocab_size,
                    name,
                    f"names token {token}; this model's ids go from 0 to {vocab_size - 1}.",
                )
        _check(
            self.allowed_token_ids is None or bool(set(self.allowed_token_ids) - set(self.banned_token_ids)),
            "allowed_token_ids",
            "are all banned by banned_token_ids; leave at least one.",
        )
