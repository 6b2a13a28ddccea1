"""What a precision costs in quality: a model against itself in another precision.

Both read the same texts (teacher-forced), so at each token their laws can be held against each other: perplexity, the
Kullback-Leibler divergence KL(reference || other), and whether both think the same token best. Then both answer prompts
greedily, each going on from its own tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.sampling.params import SamplingParams
from headstart_lab.workbench import PLAIN, Contender, Workbench

FloatArray = NDArray[np.float64]
Progress = Callable[[int], None]
"""Told how many tokens have been read or said."""

_LEVELS = ((1e-3, "as good as"), (1e-2, "close to"), (1e-1, "noticeably different from"))
_FAR = "another model than"
"""Words for a mean divergence in nats. Where the lines are drawn is our choice, made for orientation."""


@dataclass(frozen=True)
class TextFigures:
    """Both laws at each predicted token of the texts; all arrays are [token], logarithms natural."""

    reference_loss: FloatArray
    """-log p of the token that the text has next."""
    loss: FloatArray
    divergence: FloatArray
    """KL(reference || other) of the whole law, in nats."""
    same_best: NDArray[np.bool_]
    """Both find the same token likeliest."""

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss.mean()))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(self.reference_loss.mean()))

    @property
    def perplexity_ratio(self) -> float:
        """Perplexity over the reference's."""
        return float(np.exp((self.loss - self.reference_loss).mean()))

    @property
    def ratio_error(self) -> float:
        """Standard error of ``perplexity_ratio``: by paired differences, as if tokens were independent."""
        difference = self.loss - self.reference_loss
        if len(difference) < 2:
            return 0.0
        return self.perplexity_ratio * float(difference.std(ddof=1)) / math.sqrt(len(difference))

    @property
    def mean_divergence(self) -> float:
        return float(self.divergence.mean())

    def divergence_at(self, part: float) -> float:
        """The divergence that this part of the tokens does not exceed."""
        return float(np.quantile(self.divergence, part))

    @property
    def agreement(self) -> float:
        """Part of the tokens at which both find the same one likeliest."""
        return float(self.same_best.mean())


@dataclass(frozen=True)
class GreedyPair:
    """One prompt's greedy answers."""

    prompt: str
    tokens: int
    """Of the reference's answer."""
    shared: int
    """Tokens before the first difference."""
    equal: bool
    """To the end."""

    @classmethod
    def of(cls, prompt: str, reference: Sequence[int], other: Sequence[int]) -> GreedyPair:
        shared = 0
        while shared < min(len(reference), len(other)) and reference[shared] == other[shared]:
            shared += 1
        return cls(prompt, len(reference), shared, list(reference) == list(other))


@dataclass(frozen=True)
class Quality:
    """One precision against the reference."""

    precision: str
    reference: str
    backend: str
    weight_bytes: int
    texts: TextFigures
    greedy: tuple[GreedyPair, ...]

    @property
    def mean_shared(self) -> float | None:
        """Tokens of a greedy answer before the first difference, on average; a whole answer where there is none."""
        return sum(pair.shared for pair in self.greedy) / len(self.greedy) if self.greedy else None

    @property
    def mean_tokens(self) -> float | None:
        """Tokens of the reference's greedy answers, on average: the most that can be shared."""
        return sum(pair.tokens for pair in self.greedy) / len(self.greedy) if self.greedy else None

    @property
    def equal_answers(self) -> int:
        return sum(pair.equal for pair in self.greedy)

    @property
    def verdict(self) -> str:
        """In one line."""
        texts = self.texts
        level = next((words for limit, words in _LEVELS if texts.mean_divergence < limit), _FAR)
        said = (
            f"{self.precision} is {level} {self.reference}: perplexity {texts.perplexity:.2f} "
            f"({texts.perplexity_ratio - 1:+z.2%}), KL {texts.mean_divergence:.1e} nats, "
            f"{texts.agreement:.1%} same best token"
        )
        if not self.greedy:
            return said + "."
        return f"{said}; {self.equal_answers} of {len(self.greedy)} greedy answers equal."


def read_texts(
    reference: Workbench, other: Workbench, pieces: Sequence[Sequence[int]], progress: Progress | None = None
) -> TextFigures:
    """Let both models read the pieces (``passages.windows``; at least one) side by side."""
    figures: list[tuple[float, float, float, bool]] = []
    for piece in pieces:
        for said, ours, theirs in zip(piece[1:], reference.read(piece[:-1]), other.read(piece[:-1]), strict=True):
            figures.append(_compare(ours, theirs, said))
        if progress is not None:
            progress(len(piece) - 1)
    reference_loss, loss, divergence, same_best = zip(*figures, strict=True)
    return TextFigures(np.array(reference_loss), np.array(loss), np.array(divergence), np.array(same_best))


def answer_greedily(
    bench: Workbench, prompts: Sequence[Sequence[int]], max_tokens: int, progress: Progress | None = None
) -> Iterator[list[int]]:
    """Plain greedy decoding of each prompt, alone."""
    engine = bench.open(Contender.parse(PLAIN))
    for tokens in prompts:
        sequence = bench.sequence(tokens, SamplingParams(temperature=0, max_tokens=max_tokens))
        bench.decode(engine, sequence)
        if progress is not None:
            progress(len(sequence.output))
        yield sequence.output


def _compare(reference: Tensor, other: Tensor, said: int) -> tuple[float, float, float, bool]:
    """Losses at the token said, divergence, same best token; of two rows of logits [vocab]."""
    p, q = reference.double().log_softmax(0), other.double().log_softmax(0)
    # A token without probability under the reference adds nothing, whatever the other thinks of it.
    divergence = torch.where(p.exp() > 0, p.exp() * (p - q), 0.0).sum()
    return -float(p[said]), -float(q[said]), max(float(divergence), 0.0), bool(p.argmax() == q.argmax())
