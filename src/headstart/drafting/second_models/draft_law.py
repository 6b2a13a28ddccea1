"""The law that a drafter with a model guesses from: the request's own transforms over the draft's logits.

The draft's law may differ from the target's (other temperature, other truncation): verification asks only that
``draft_probs`` be the law a token was drawn from, bit for bit (docs/exactness.md 0).
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.errors import ConfigError, RequestError
from headstart.sampling.history import PathHistory, TokenHistory
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms

COUPLING = (VerifyRule.COUPLED,)
"""Rules under which guesses share the target's noise."""


@dataclass(frozen=True)
class DraftLawOptions:
    """What every drafter that runs a model may be told. None: as the request says."""

    draft_tokens: int = 5
    """Depth of a draft at most."""
    temperature: float | None = None
    """Of the draft where the request samples; 0 drafts its likeliest tokens, as point masses."""
    top_k: int | None = None
    """Of the draft where the request samples; 0 keeps all."""
    top_p: float | None = None
    """Of the draft where the request samples."""
    min_confidence: float = 0.0
    """A draft ends before a token if no token is at least this probable. The rule looks at the law alone, never at
    what is drawn from it, so sampled drafts stay exact."""

    def __post_init__(self) -> None:
        require(self.draft_tokens >= 1, f"draft_tokens is {self.draft_tokens}; it must be 1 or more.")
        require(
            0 <= self.min_confidence <= 1, f"min_confidence is {self.min_confidence}; it must lie in [0, 1], 0 is off."
        )
        try:
            self.of_draft(SamplingParams())
        except RequestError as error:
            raise ConfigError(f"of the draft, {error}") from error

    def of_draft(self, params: SamplingParams) -> SamplingParams:
        """The request's parameters with the draft's own in their place; greedy requests are drafted greedily."""
        if params.greedy:
            return params
        names = ("temperature", "top_k", "top_p")
        own: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(params, **own) if own else params


class DraftLaw:
    """One sequence's way from the draft's logits to guesses. ``path``: tokens guessed after the root.

    Total: where logits give no law (not a number, or nothing allowed), any guess is as good as another. Giving up
    there instead could depend on the value of a draw, which would bias sampled drafts.
    """

    def __init__(
        self,
        sequence: SequenceView,
        options: DraftLawOptions,
        vocab_size: int,
        eos: Sequence[int],
        coupling: Container[VerifyRule] = COUPLING,
    ) -> None:
        self.transforms = Transforms(options.of_draft(sequence.params), vocab_size, eos, sequence.noise.kernels)
        self.coupled = sequence.speculation.verify in coupling
        self.point_masses = self.coupled or self.transforms.greedy
        """Guesses are not draws: the likeliest token, or the one that the target's noise picks."""
        self._min_confidence = options.min_confidence
        self._history: TokenHistory | None = None
        if self.transforms.needs_history:
            prompt = sequence.prompt_length
            source = None if sequence.source is None else sequence.source.tokens
            self._history = TokenHistory(sequence.tokens[:prompt], sequence.tokens[prompt:], source)
        self.seen = len(sequence.tokens)
        """Tokens of the sequence that the history counts."""

    @property
    def is_plain(self) -> bool:
        """Whether guesses follow from logits and the position's noise alone, whatever their confidence."""
        return self._min_confidence == 0 and (self.transforms.only_best or self.transforms.only_drawn)

    def follow(self, tokens: Sequence[int]) -> None:
        """Count the tokens that were committed since."""
        if self._history is not None:
            for token in tokens[self.seen :]:
                self._history.append(token)
        self.seen = len(tokens)

    def probs(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        """The law after ``path``, float64 [vocab], summing to 1."""
        try:
            return self.transforms.law(logits, self._along(path))
        except RequestError:
            size = self.transforms.vocab_size
            return torch.full((size,), 1 / size, dtype=torch.float64)

    def decide(self, logits: Tensor, sequence: SequenceView, path: Sequence[int]) -> int:
        """The likeliest token after ``path`` if greedy, else the one that the position's noise picks."""
        try:
            position = len(sequence.tokens) + len(path)
            return self.transforms.sample(logits, sequence.noise, position, self._along(path))
        except RequestError:
            return 0

    def ranked(self, logits: Tensor, sequence: SequenceView, path: Sequence[int], count: int) -> list[int]:
        """The first ``count`` of what ``decide`` would say next to its choice, that first; fewer where fewer can be."""
        if self.transforms.greedy:
            scores = self.scores(logits, path)
            return scores.topk(min(count, int(scores.isfinite().sum()))).indices.tolist()
        position = len(sequence.tokens) + len(path)
        return ranked_by_noise(self.probs(logits, path), sequence.noise, position, count)

    def scores(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        """Log-probabilities after ``path`` before temperature and truncation, float32 [vocab]."""
        processed = self.transforms.processed_logits(logits, self._along(path))
        return processed.log_softmax(-1).nan_to_num(-torch.inf)

    def is_confident(self, logits: Tensor, path: Sequence[int], law: Tensor | None = None) -> bool:
        """Whether some token after ``path`` is as probable as asked for. ``law``: that of ``probs``, where known."""
        if self._min_confidence == 0:
            return True
        if self.transforms.greedy:
            return math.exp(float(self.scores(logits, path).max())) >= self._min_confidence
        law = self.probs(logits, path) if law is None else law
        return float(law.max()) >= self._min_confidence

    def _along(self, path: Sequence[int]) -> PathHistory | None:
        return None if self._history is None else self._history.along(path)


class DraftLaws:
    """The laws of the sequences that a drafter follows."""

    def __init__(
        self, context: DraftContext, options: DraftLawOptions, coupling: Container[VerifyRule] = COUPLING
    ) -> None:
        self.vocab_size = context.vocab_size
        self._options, self._coupling = options, coupling
        self._eos = () if context.runner is None else context.runner.backend.config.eos_token_ids
        self._laws: dict[int, DraftLaw] = {}

    def of(self, sequence: SequenceView) -> DraftLaw:
        """The law of a sequence as it stands now."""
        law = self._laws.get(sequence.id)
        if law is None:
            law = self._laws[sequence.id] = DraftLaw(
                sequence, self._options, self.vocab_size, self._eos, self._coupling
            )
        law.follow(sequence.tokens)
        return law

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back."""
        law = self._laws.get(sequence.id)
        if law is not None and law.seen > len(sequence.tokens):
            self.forget(sequence.id)

    def forget(self, sequence_id: int) -> None:
        """Unknown ids are ignored."""
        self._laws.pop(sequence_id, None)


def ranked_by_noise(law: Tensor, noise: SequenceNoise, position: int, count: int) -> list[int]:
    """The tokens that a position's own noise picks of a law first, second, ... (docs/exactness.md 6)."""
    ids = law.nonzero().flatten()
    exponentials = noise.position_exponentials(position, len(law), ids)
    first = (exponentials / law[ids]).topk(min(count, len(ids)), largest=False).indices
    return ids[first].tolist()


def fit_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """[..., draft vocab] -> [..., vocab]: padding rows of the draft's head are cut, missing ones are impossible."""
    missing = vocab_size - logits.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    return logits[..., :vocab_size]
