"""What a request returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a sequence ended; the values are OpenAI's where it has one."""

    STOP = "stop"
    """An end-of-sequence or stop token, or a stop string."""
    LENGTH = "length"
    """max_tokens, or the end of the context."""
    ABORT = "abort"
    ERROR = "error"


class TokenOrigin(StrEnum):
    """How a committed token came to be."""

    ACCEPTED = "accepted"
    """Guessed by the drafter and kept."""
    CORRECTED = "corrected"
    """The target's own token where every guess was wrong."""
    BONUS = "bonus"
    """The target's own token after a fully accepted path."""
    PLAIN = "plain"
    """Nothing was guessed."""


@dataclass
class SequenceStats:
    """Counts and times of one sequence; seconds are wall time."""

    prompt_tokens: int = 0
    """Positions of what an encoder reads included."""
    tokens: int = 0
    """Output tokens, an end-of-sequence token included."""
    rounds: int = 0
    """Passes of the target after prefill."""
    target_passes: int = 0
    """All passes of the target that this sequence rode in, prefill included."""
    drafted: int = 0
    """Nodes guessed (probe nodes are not guesses)."""
    accepted: int = 0
    """Guesses that became output tokens."""
    beam_steps: int = 0
    """Of a beam search, told in the best beam's: tokens by which it was searched further, each of which would have been
    a round without guesses. ``drafted`` and ``accepted`` count over all beams."""
    unsaid: int = 0
    """Rounds that ended the output with a guess: the target's own token after it, though known, was not said."""
    sampled_rounds: int = 0
    """Rounds whose guesses were drawn at random. Without any, each token was the target's own draw at its position."""
    drafted_per_position: list[int] = field(default_factory=list)
    """[i]: rounds in which a guess at depth i + 1 could have been accepted (its parents all were)."""
    accepted_per_position: list[int] = field(default_factory=list)
    """[i]: rounds in which the guess at depth i + 1 was accepted."""
    preemptions: int = 0
    cached_tokens: int = 0
    """Tokens that were taken from the prefix cache, or over from another sample, instead of being computed."""
    prefill_seconds: float = 0.0
    encoder_seconds: float = 0.0
    """Of ``prefill_seconds``: the target's encoder; 0 where there is none, or others had it read the same input."""
    seconds: float = 0.0
    """From admission to the last token, prefill included."""
    draft_seconds: float = 0.0
    """Time of the drafter in this sequence's rounds (shared by the sequences of a round)."""
    draft_prefill_seconds: float = 0.0
    """Time of the drafter while the prompt was read, which it may read as well (shared likewise); not among
    ``prefill_seconds``."""
    target_seconds: float = 0.0
    """Time of the target's passes in this sequence's rounds (shared likewise)."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted nodes, 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per round, the correction or bonus included (the papers' tau)."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def passes_saved(self) -> int:
        """Of a beam search: rounds that it did not need, thanks to guesses."""
        return max(self.beam_steps - self.rounds, 0)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the sequence's wall time, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names of the command line's JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "target_passes": self.target_passes,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "beam_steps": self.beam_steps,
            "passes_saved": self.passes_saved,
            "sampled_rounds": self.sampled_rounds,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.mean_accepted_length,
            "accepted_per_position": list(self.accepted_per_position),
            "drafted_per_position": list(self.drafted_per_position),
            "preemptions": self.preemptions,
            "seconds": self.seconds,
            "prefill_seconds": self.prefill_seconds,
            "encoder_seconds": self.encoder_seconds,
            "draft_seconds": self.draft_seconds,
            "draft_prefill_seconds": self.draft_prefill_seconds,
            "target_seconds": self.target_seconds,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True)
class Logprob:
    """What vLLM says of a token in a place."""

    logprob: float
    rank: int | None
    """1 more than how many tokens are more probable."""
    decoded_token: str | None = None


@dataclass(frozen=True)
class TokenLogprobs(Mapping[int, Logprob]):
    """Log-probabilities at one token, of the target's law before any transform. As a mapping it is vLLM's: token id ->
    ``Logprob``, of the token itself and of the most probable ones."""

    token_id: int
    logprob: float
    top: dict[int, float]
    """The most probable tokens, best first."""
    rank: int
    """Of ``token_id``: 1 more than how many tokens are more probable."""
    spell: Callable[[int], str] | None = field(default=None, repr=False, compare=False)
    """The text of a token, for ``Logprob.decoded_token``."""

    def __getitem__(self, token_id: int) -> Logprob:
        if token_id == self.token_id:
            logprob, rank = self.logprob, self.rank
        else:
            logprob = self.top[token_id]
            rank = 1 + sum(other > logprob for other in self.top.values())
        return Logprob(logprob, rank, None if self.spell is None else self.spell(token_id))

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys((self.token_id, *self.top)))

    def __len__(self) -> int:
        return len(self.top) + (self.token_id not in self.top)


@dataclass(frozen=True)
class RequestMetrics:
    """When what happened to a request, by vLLM's names. ``*_ts`` are readings of ``time.perf_counter``."""

    arrival_time: float
    """Seconds since 1970."""
    queued_ts: float
    scheduled_ts: float
    """When the engine took it in."""
    first_token_ts: float
    """When its prompt had been read."""
    last_token_ts: float
    num_generation_tokens: int
    """Of all its samples."""

    @property
    def first_token_latency(self) -> float:
        """Seconds from its arrival to the end of its prompt's passes."""
        return self.first_token_ts - self.queued_ts


@dataclass(frozen=True)
class Completion:
    """One sample of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    """None: it grows still (``AsyncLLM``)."""
    stats: SequenceStats
    origins: list[TokenOrigin]
    """[token] how each came to be."""
    logprobs: list[TokenLogprobs] | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it, None for an end-of-sequence token or the length."""
    error: str | None = None
    score: float | None = None
    """Of a beam: its log-probability, after the request's transforms, over its length to the power of the length
    penalty (transformers: ``sequences_scores``)."""

    lora_request: None = None
    """Adapters are merged into the model; the field is vLLM's."""

    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of its tokens' log-probabilities, where they were asked for."""
        return None if self.logprobs is None else sum(token.logprob for token in self.logprobs)


@dataclass(frozen=True)
class RequestOutput:
    """Everything about one prompt. ``text``, ``token_ids`` and so on are the first sample's."""

    prompt: str
    prompt_token_ids: list[int]
    """What was read of it: less than the prompt's own where ``truncate_prompt_tokens`` says so."""
    outputs: list[Completion]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """[prompt token] where asked for; None for the first one, which nothing comes before."""
    request_id: str = ""
    """Unique in its ``LLM``."""
    encoder_prompt: str | None = None
    """What the encoder read, where the model has one; ``prompt`` is what the outputs began with then."""
    encoder_prompt_token_ids: list[int] | None = None
    metrics: RequestMetrics | None = None
    """When what happened to it; None: it has not ended yet."""
    lora_request: None = None
    """Adapters are merged into the model; the field is vLLM's."""

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were taken from the prefix cache instead of being computed."""
        stats = self.outputs[0].stats
        return min(stats.cached_tokens, stats.prompt_tokens)

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def finished(self) -> bool:
        """Whether all samples have ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def stats(self) -> SequenceStats:
        return self.outputs[0].stats

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.outputs[0].logprobs
