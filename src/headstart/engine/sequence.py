"""One sequence on its way from prompt to finish: its tokens, its stop conditions, its counts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from headstart.drafting.base import BeamView, SpeculationParams
from headstart.engine.constraint import TokenConstraint
from headstart.engine.outputs import FinishReason, SequenceStats, TokenLogprobs, TokenOrigin
from headstart.engine.trace import Trace
from headstart.passes.adapters import Adapter
from headstart.passes.batch import EncoderInput
from headstart.sampling.history import TokenHistory
from headstart.sampling.kernels import RowKernels
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms
from headstart.verification.beam import Watch

if TYPE_CHECKING:
    from headstart.engine.beams import BeamGroup

NO_LIMIT = 1 << 62
"""More tokens than a sequence ever has."""


class GrowingText(Protocol):
    """The text of a sequence, watched for stop strings (the engine itself knows no text)."""

    @property
    def stop(self) -> str | None:
        """The stop string that was completed, if one was."""
        ...

    def append(self, token_id: int, ends: bool) -> None:
        """Take one committed token, by which the sequence ends or not."""
        ...

    def watch(self) -> Watch | None:
        """What finds stop strings in texts that go on from here, each its own way; None: there are none."""
        ...


@dataclass(frozen=True)
class StopRules:
    """When a sequence ends, besides its stop strings."""

    end_tokens: frozenset[int]
    """The model's end-of-sequence tokens, empty where they are ignored."""
    stop_tokens: frozenset[int]
    """The request's own stop tokens."""
    max_tokens: int
    """Output tokens at most."""


class CommittedTokens(list[int]):
    """Tokens that the engine alone adds to: what a drafter did to them would change the text."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the tokens of a sequence are the engine's; change a copy of them")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


@dataclass(eq=False)
class Sequence:
    """Implements ``drafting.base.SequenceView``.

    ``tokens`` holds the prompt and everything committed; the last one is the root of the next round. All others
    are, or will be after prefill, in the target's cache.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    transforms: Transforms
    noise: SequenceNoise
    stops: StopRules
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    source: EncoderInput | None = None
    """What the encoder reads for it, where the target has one."""
    cache_salt: str = ""
    """Only sequences of the same salt share cached prefixes."""
    adapter: Adapter | None = None
    """What its passes change the target by; the salt is its own then (``passes.adapters.salted``)."""
    leader: Sequence | None = None
    """Another sample of the same request, which reads the prompt for this one too."""
    group: BeamGroup | None = None
    """The beam search whose result it will hold, or of which it is a beam."""
    beam: BeamView | None = None
    """Of a beam: what drafters may know of its group."""
    text: GrowingText | None = None
    constraint: TokenConstraint | None = None
    """What the output may be; None: anything."""
    stats: SequenceStats = field(default_factory=SequenceStats)
    origins: list[TokenOrigin] = field(default_factory=list)
    """[output token]."""
    rejected: list[int | None] = field(default_factory=list)
    """[output token] the drafter's first guess in its place, where that was rejected."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """[output token], where asked for."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """[prompt token - 1] where asked for; nothing comes before the first token."""
    trace: Trace | None = None
    """Where given, every round is recorded in it."""
    one_by_one: int = 0
    """Output tokens up to which its rounds are not run at once."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    score: float | None = None
    """Of a beam search's result: its log-probability over its length to the power of the length penalty."""
    error: str | None = None
    error_field: str | None = None
    """As ``RequestError.field``."""
    refused: bool = False
    """The error lies in what the request asked for, not in model or machine."""
    out_of_memory: bool = False
    """The error is that memory could not be had."""
    history: TokenHistory = field(init=False)
    """Kept up where the request's transforms look at it."""
    started: float | None = None
    """Clock at admission, in seconds."""

    @classmethod
    def of(
        cls,
        id: int,
        tokens: Iterable[int],
        params: SamplingParams,
        *,
        vocab_size: int,
        end_tokens: Seq[int],
        seed: int,
        sample: int = 0,
        kernels: RowKernels | None = None,
        max_tokens: int = NO_LIMIT,
        **others: Any,
    ) -> Sequence:
        """A request of token ids.

        Args:
            tokens: of the prompt.
            vocab_size, end_tokens: the target's.
            seed, sample: of its noise.
            kernels: compiled code that may help with its draws.
            max_tokens: where the request names no bound.
            others: fields by name.

        Raises:
            RequestError: a parameter names a token outside the vocabulary.
        """
        prompt = list(tokens)
        return cls(
            id=id,
            tokens=prompt,
            prompt_length=len(prompt),
            params=params,
            transforms=Transforms(params, vocab_size, end_tokens, kernels),
            noise=SequenceNoise(seed, sample, kernels=kernels),
            stops=StopRules(
                end_tokens=frozenset() if params.ignore_eos else frozenset(end_tokens),
                stop_tokens=frozenset(params.stop_token_ids),
                max_tokens=max_tokens if params.max_tokens is None else params.max_tokens,
            ),
            **others,
        )

    def __post_init__(self) -> None:
        self.tokens = CommittedTokens(self.tokens)
        source = None if self.source is None else self.source.tokens
        self.history = TokenHistory(self.tokens[: self.prompt_length], self.tokens[self.prompt_length :], source)
        self.stats.prompt_tokens = self.prompt_length + (0 if self.source is None else self.source.positions)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def forked(self, id: int) -> Self:
        """A beam that stands where this sequence stands. It counts into the same statistics: they are the group's."""
        return replace(self, id=id, leader=None, text=None, origins=[], rejected=[], logprobs=[])

    def extend(self, tokens: Iterable[int]) -> None:
        """Grow by tokens that a search has chosen, none of which ends the sequence."""
        for token in tokens:
            list.append(self.tokens, token)
            if self.transforms.needs_history:
                self.history.append(token)

    def commit(self, token: int) -> None:
        """Make one token final and see whether it ends the sequence."""
        list.append(self.tokens, token)
        if self.transforms.needs_history:
            self.history.append(token)
        self.stats.tokens += 1
        if self.text is not None:
            self.text.append(token, token in self.stops.end_tokens or token in self.stops.stop_tokens)
        if token in self.stops.end_tokens:
            self.finish_reason = FinishReason.STOP
        elif token in self.stops.stop_tokens:
            self.finish_reason, self.stop_reason = FinishReason.STOP, token
        elif self.text is not None and self.text.stop is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, self.text.stop
        elif self.num_output >= self.stops.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        elif self.constraint is not None:
            self.constraint.advance(token)

    def fail(self, message: str, refused: bool = False, field: str | None = None, out_of_memory: bool = False) -> None:
        """End this sequence alone with an error; ``refused``: for what the request itself asked, by ``field``."""
        self.finish_reason = FinishReason.ERROR
        self.error = message
        self.refused = refused
        self.out_of_memory = out_of_memory
        self.error_field = field
