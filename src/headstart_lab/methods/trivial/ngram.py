"""N-gram tables over the recent context (the akunu book, "Speculative decoding with n-grams").

For each context of 3, 2 and 1 tokens (4-, 3- and 2-grams) the tables count what followed it. A draft takes the
most frequent continuation of the longest context that has one, appends it to a tentative context and goes on, so
its guesses chain. Where the chapter is silent or its text cannot be meant:

* equal counts: the continuation seen last wins (two continuations of one context are never equally old);
* the chapter's window of 512 tokens evicts nothing, as its tables keep every count and no context is longer than 3
  tokens. Here n-grams leave the tables with the tokens that leave the window;
* contexts are the tokens themselves, so no two of them can collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.history import HistoryDrafter
from headstart.drafting.options import require
from headstart.passes.draft_tree import DraftTree
from headstart_lab.methods.trivial.counts import NextCounts

GRADE_RATES = (
    *(0.29, 0.50, 0.53, 0.55, 0.20, 0.25, 0.14, 0.20),  # a context of one token
    *(0.52, 0.59, 0.82, 0.80, 0.56, 0.30, 0.35, 0.34),
    *(0.86, 0.79, 0.87, 0.85, 0.63, 0.31, 0.43, 0.36),
    *(0.90, 0.85, 0.90, 0.88, 0.65, 0.35, 0.45, 0.40),  # of four and more
)
"""How often guesses of each grade hold: measured on 2,800 greedy tokens of SmolLM2-135M after the prompts that ship
(no context of four tokens is counted by default: those follow the trend)."""


@dataclass(frozen=True)
class NgramOptions:
    draft_tokens: int = 4
    """Tokens of a draft at most."""
    max_order: int = 4
    """Longest n-gram counted: its context has one token less."""
    min_order: int = 2
    """Shortest n-gram counted."""
    window: int | None = 512
    """Tokens that are counted, the latest ones; None counts them all (some 30 MB for each 20,000 tokens)."""

    def __post_init__(self) -> None:
        require(self.draft_tokens >= 1, f"draft_tokens is {self.draft_tokens}; it must be 1 or more.")
        require(self.min_order >= 2, f"min_order is {self.min_order}; it must be 2 or more.")
        require(
            self.max_order >= self.min_order,
            f"max_order is {self.max_order}; it must be at least min_order, {self.min_order}.",
        )
        require(
            self.window is None or self.window >= self.max_order,
            f"window is {self.window}; it must hold one n-gram of max_order, {self.max_order}.",
        )


class NgramTables:
    """Counts of the n-grams that lie wholly within the last ``window`` tokens of one sequence."""

    def __init__(self, min_order: int, max_order: int, window: int | None) -> None:
        self._contexts = range(max_order - 1, min_order - 2, -1)
        self._window = window
        self._tokens: list[int] = []
        self._first = 0
        self._tables: dict[tuple[int, ...], NextCounts] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Count further tokens: O(orders) each."""
        if self._window is not None and len(tokens) >= self._window:
            self._tokens, self._first, self._tables = [], 0, {}
            tokens = tokens[-self._window :]
        for token in tokens:
            self._append(token)
        if self._first > len(self._tokens) // 2:
            del self._tokens[: self._first]
            self._first = 0

    def _append(self, token: int) -> None:
        history, tables = self._tokens, self._tables
        if len(history) - self._first == self._window:
            self._evict()
        end, held = len(history), len(history) - self._first
        for length in self._contexts:
            if length <= held:
                context = tuple(history[end - length :])
                counts = tables.get(context)
                if counts is None:
                    counts = tables[context] = NextCounts()
                counts.add(token)
        history.append(token)

    def _evict(self) -> None:
        """Take back the n-grams that begin at the oldest token."""
        first = self._first
        for length in self._contexts:
            context = tuple(self._tokens[first : first + length])
            counts = self._tables[context]
            counts.remove(self._tokens[first + length])
            if not counts:
                del self._tables[context]
        self._first = first + 1

    def predict(self, limit: int) -> tuple[list[int], list[int]]:
        """At most ``limit`` guesses, each from the longest context that has one, and their classes of confidence
        (``DraftTree.grades``); ends at the first miss."""
        tables, lengths = self._tables, self._contexts
        tentative = self._tokens[max(self._first, len(self._tokens) - lengths[0]) :]
        held = len(tentative)
        grades: list[int] = []
        for depth in range(limit):
            for length in lengths:
                counts = tables.get(tuple(tentative[-length:]))
                if counts is not None:
                    token = counts.best()
                    tentative.append(token)
                    grades.append(_grade(length, counts, token, depth))
                    break
            else:
                break
        return tentative[held:], grades


def _grade(length: int, counts: NextCounts, token: int, depth: int) -> int:
    """By the context's length, what else followed it, and whether the context holds guesses."""
    seen = counts.counts
    count, total = seen[token], sum(seen.values())
    rivals = (2 if 2 * count > total else 3) if len(seen) > 1 else min(count - 1, 1)
    return (min(length, 4) - 1) * 8 + rivals * 2 + (depth > 0)


class NgramDrafter(HistoryDrafter[NgramTables]):
    """A chain of the most frequent continuations."""

    Options = NgramOptions
    grade_rates = GRADE_RATES

    def __init__(self, context: DraftContext, options: NgramOptions) -> None:
        super().__init__()
        self._options = options

    def new_state(self, sequence: SequenceView) -> NgramTables:
        return NgramTables(self._options.min_order, self._options.max_order, self._options.window)

    def draft(self, state: NgramTables, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        tokens, grades = state.predict(min(self._options.draft_tokens, budget.nodes, budget.depth))
        if not tokens:
            return DraftTree.empty()
        parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
        return DraftTree(np.array(tokens, dtype=np.int32), parents, grades=np.array(grades, dtype=np.int32))
