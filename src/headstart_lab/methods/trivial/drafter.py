"""The trivial models of the founding paper (Leviathan et al. 2023, section 4.2): unigram, bigram, random.

The corpus is the sequence itself, prompt and output, and a text file where one is named. By default a draft is a
chain of the likeliest tokens (point masses); with ``sample`` it is drawn from the counts and verified by
rejection, or, where the request asks for coupled verification, drawn with the noise that the target will use and
verified as point masses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.history import HistoryDrafter
from headstart.drafting.options import require
from headstart.errors import ConfigError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import Stream
from headstart_lab.methods.trivial.counts import NextCounts


@dataclass(frozen=True)
class RandomOptions:
    draft_tokens: int = 3
    """Tokens of a draft at most (the paper's gamma)."""
    sample: bool = False
    """Draw from the law and hand it on as ``draft_probs``, instead of point masses."""

    def __post_init__(self) -> None:
        require(self.draft_tokens >= 1, f"draft_tokens is {self.draft_tokens}; it must be 1 or more.")


@dataclass(frozen=True)
class CountOptions(RandomOptions):
    corpus: str | None = None
    """A UTF-8 text file that is counted before every sequence."""


class ContextCounts:
    """What followed each context of one sequence: no token (unigram) or one (bigram).

    ``base`` holds the corpus' counts; those of a context are copied when the sequence first adds to them.
    """

    def __init__(self, context_length: int, base: Mapping[int | None, NextCounts]) -> None:
        self._context_length = context_length
        self._base = base
        self._own: dict[int | None, NextCounts] = {}
        self._last: int | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        """Count further tokens."""
        for token in tokens:
            if self._last is not None or self._context_length == 0:
                context = self._last if self._context_length else None
                counts = self._own.get(context)
                if counts is None:
                    base = self._base.get(context)
                    counts = self._own[context] = NextCounts() if base is None else base.copy()
                counts.add(token)
            self._last = token

    def after(self, token: int) -> NextCounts | None:
        """Counts of the token after ``token``; None where nothing is known."""
        context = token if self._context_length else None
        return self._own.get(context) or self._base.get(context)

    def freeze(self) -> Mapping[int | None, NextCounts]:
        """The counts so far, as the base of others."""
        return self._own


class CountDrafter(HistoryDrafter[ContextCounts]):
    """A chain from the counts of contexts of one length; it ends where nothing is known of a context.

    Ending there is a rule on the law before the draw, so it leaves sampled drafts exact (docs/exactness.md 0).
    """

    Options = CountOptions
    context_length: int

    def __init__(self, context: DraftContext, options: CountOptions) -> None:
        super().__init__()
        self._vocab_size = context.vocab_size
        self._options = options
        corpus = ContextCounts(self.context_length, {})
        if options.corpus is not None:
            corpus.extend(context.require_tokenizer().encode(_read_corpus(options.corpus)))
        self._corpus = corpus.freeze()

    def new_state(self, sequence: SequenceView) -> ContextCounts:
        return ContextCounts(self.context_length, self._corpus)

    def draft(self, state: ContextCounts, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        tokens: list[int] = []
        laws: list[Tensor] = []
        token = sequence.tokens[-1]
        for index in range(min(self._options.draft_tokens, budget.nodes, budget.depth)):
            counts = state.after(token)
            if counts is None:
                break
            if self._options.sample:
                law = _law(counts, self._vocab_size)
                token = _draw(law, sequence, index)
                laws.append(law)
            else:
                token = counts.best()
            tokens.append(token)
        return _chain(tokens, laws, sequence)


class UnigramDrafter(CountDrafter):
    """Each guess from the counts of all tokens."""

    context_length = 0


class BigramDrafter(CountDrafter):
    """Each guess from what followed the token before it."""

    context_length = 1


class RandomDrafter:
    """Uniformly random tokens, drawn with the sequence's own noise."""

    Options = RandomOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: RandomOptions) -> None:
        self._vocab_size = context.vocab_size
        self._options = options
        self._law = torch.full((context.vocab_size,), 1 / context.vocab_size, dtype=torch.float64)

    def begin(self, sequence: SequenceView) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        length = min(self._options.draft_tokens, budget.nodes, budget.depth)
        if self._options.sample:
            tokens = [_draw(self._law, sequence, index) for index in range(length)]
            return _chain(tokens, [self._law] * length, sequence)
        root = len(sequence.tokens) - 1
        noise = (sequence.noise.uniform(Stream.DRAFT, root, index) for index in range(length))
        return DraftTree.chain([int(number * self._vocab_size) for number in noise])

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass


def _law(counts: NextCounts, vocab_size: int) -> Tensor:
    """Relative frequencies, float64 [vocab]."""
    law = np.zeros(vocab_size)
    law[list(counts.counts)] = list(counts.counts.values())
    return torch.from_numpy(law / law.sum())


def _draw(law: Tensor, sequence: SequenceView, index: int) -> int:
    """The draw for guess ``index`` of a chain."""
    root = len(sequence.tokens) - 1
    if not _is_coupled(sequence):
        return sequence.noise.draw(Stream.DRAFT, root, index, law)
    weights = law.numpy()
    support = np.flatnonzero(weights)
    return sequence.noise.draw_at(root + 1 + index, len(weights), weights[support], support)


def _is_coupled(sequence: SequenceView) -> bool:
    return sequence.speculation.verify is VerifyRule.COUPLED


def _chain(tokens: Sequence[int], laws: Sequence[Tensor], sequence: SequenceView) -> DraftTree:
    if not laws or _is_coupled(sequence):
        return DraftTree.chain(tokens)
    return DraftTree.chain(tokens, torch.stack(list(laws)))


def _read_corpus(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"corpus {path!r} cannot be read as UTF-8 text: {error}.") from error
