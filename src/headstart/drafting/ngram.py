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

from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.counts import NextCounts
from headstart.drafting.history import HistoryDrafter
from headstart.drafting.options import require


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

    def predict(self, limit: int) -> list[int]:
        """At most ``limit`` guesses, each from the longest context that has one; ends at the first miss."""
        tables, lengths = self._tables, self._contexts
        tentative = self._tokens[max(self._first, len(self._tokens) - lengths[0]) :]
        held = len(tentative)
        for _ in range(limit):
            for length in lengths:
                counts = tables.get(tuple(tentative[-length:]))
                if counts is not None:
                    tentative.append(counts.best())
                    break
            else:
                break
        return tentative[held:]


class NgramDrafter(HistoryDrafter[NgramTables]):
    """A chain of the most frequent continuations."""

    Options = NgramOptions

    def __init__(self, context: DraftContext, options: NgramOptions) -> None:
        super().__init__()
        self._options = options

    def new_state(self, sequence: SequenceView) -> NgramTables:
        return NgramTables(self._options.min_order, self._options.max_order, self._options.window)

    def draft(self, state: NgramTables, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        return DraftTree.chain(state.predict(min(self._options.draft_tokens, budget.nodes, budget.depth)))
