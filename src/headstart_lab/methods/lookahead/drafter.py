"""Lookahead decoding (Fu et al. 2024, arXiv:2402.02057): the target's own pass finds n-grams beside verifying them.

A window of guessed tokens rides in every pass as probe rows, which are never committed: ``width`` columns, each a few
levels deep. Each pass says what would follow every column (a step of Jacobi's iteration); the columns so completed are
n-grams for a pool, and the window moves on a level. What the pool holds after the root's token is guessed.

Row (level, column) sees the columns of level 0 up to its own, and its own column above it: a tree, so the pass needs
no other mask than trees have. Window rows that say what a guess says are one row with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.passes.draft_tree import ROOT, DraftTree

MAX_ROWS = 1024


@dataclass(frozen=True)
class LookaheadOptions:
    ngram: int = 4
    """Tokens of an n-gram: the one looked up, and those guessed."""
    width: int = 5
    """Columns of the window; it takes width * (ngram - 1) - 1 rows of a pass."""
    guesses: int = 5
    """N-grams kept for each token, the ones seen last, and guessed at most."""
    from_prompt: bool = True
    """The prompt's own n-grams are in the pool from the start."""

    def __post_init__(self) -> None:
        require(self.ngram >= 2, f"ngram is {self.ngram}; it must be 2 or more.")
        for name in ("width", "guesses"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be 1 or more.")
        rows = self.width * self.levels
        require(rows <= MAX_ROWS, f"width * (ngram - 1) is {rows}; it must be {MAX_ROWS} or less to fit into a pass.")

    @property
    def levels(self) -> int:
        return self.ngram - 1


@dataclass
class Window:
    """One sequence's window and pool."""

    levels: list[list[int]]
    """[level][column] tokens, level 0 without its column 0, which is the root. Short of its levels at first."""
    pool: dict[int, OrderedDict[tuple[int, ...], None]] = field(default_factory=dict)
    """token -> what followed it, the n-gram seen last at the end."""
    draft: DraftTree | None = None
    """The last draft that carried the window."""
    nodes: list[list[int]] = field(default_factory=list)
    """[level][column] its nodes there; (0, 0) is ROOT."""


class LookaheadDrafter:
    """Guesses n-grams that earlier passes have found on the side."""

    Options = LookaheadOptions
    needs = TargetSignals(top_ids=1)

    def __init__(self, context: DraftContext, options: LookaheadOptions) -> None:
        self._options = options
        self._ends = frozenset(() if context.runner is None else context.runner.backend.config.eos_token_ids)
        self._windows: dict[int, Window] = {}

    def begin(self, sequence: SequenceView) -> None:
        options, tokens = self._options, sequence.tokens
        # Any tokens will do to begin with; those of the context are the likeliest to lead somewhere.
        first = np.random.default_rng(len(tokens)).integers(0, len(tokens), options.width - 1)
        window = Window([[tokens[place] for place in first.tolist()]])
        if options.from_prompt:
            for place in range(len(tokens) - options.levels):
                self._remember(window, tokens[place], tokens[place + 1 : place + options.ngram])
        self._windows[sequence.id] = window

    def end(self, sequence_id: int) -> None:
        self._windows.pop(sequence_id, None)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            window = self._windows.get(outcome.sequence.id)
            if window is not None and outcome.top_ids is not None and outcome.draft is window.draft:
                # Row 0 is the root, node i stands in row i + 1.
                found = [int(outcome.top_ids[node + 1, 0]) for node in window.nodes[-1]]
                self._advance(window, int(outcome.row_tokens[0]), found)

    def _draft(self, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        options, window = self._options, self._windows.get(sequence.id)
        if window is None or min(budget.nodes, budget.depth) < 1:
            return DraftTree.empty()
        rows = sum(map(len, window.levels))
        rides = rows <= budget.nodes and options.width - 1 + len(window.levels) - 1 <= budget.depth
        tree = _Branches(budget.nodes - rows if rides else budget.nodes, budget.depth)
        for guess in reversed(window.pool.get(sequence.tokens[-1], OrderedDict())):
            tree.add_guess(guess)
        window.draft = None
        if rides:
            window.nodes = tree.add_window(window.levels)
        draft = tree.tree()
        if rides:
            window.draft = draft
        return draft

    def _advance(self, window: Window, root: int, found: list[int]) -> None:
        """Take in what the pass says after each column of the last level."""
        options, levels = self._options, window.levels
        found = [root if token in self._ends else token for token in found]
        if len(levels) < options.levels:
            levels.append(found)
            return
        for column, token in enumerate(found):
            first = root if column == 0 else levels[0][column - 1]
            self._remember(window, first, [*(level[column] for level in levels[1:]), token])
        above = found if options.levels == 1 else levels[1]
        window.levels = [above[1:], *levels[2:], found][: options.levels]

    def _remember(self, window: Window, token: int, following: Sequence[int]) -> None:
        known = window.pool.setdefault(token, OrderedDict())
        known[tuple(following)] = None
        known.move_to_end(tuple(following))
        if len(known) > self._options.guesses:
            known.popitem(last=False)


class _Branches:
    """A tree in the making, in which equal siblings are one node."""

    def __init__(self, guessed_nodes: int, depth: int) -> None:
        self._room, self._depth = guessed_nodes, depth
        self._known: dict[tuple[int, int], int] = {}
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._probe: list[bool] = []

    def add_guess(self, tokens: Sequence[int]) -> None:
        node = ROOT
        for token in tokens[: self._depth]:
            if (node, token) not in self._known and len(self._tokens) >= self._room:
                return
            node = self._child(node, token, probe=False)

    def add_window(self, levels: Sequence[Sequence[int]]) -> list[list[int]]:
        """Its nodes, [level][column]."""
        nodes = [[ROOT]]
        for token in levels[0]:
            nodes[0].append(self._child(nodes[0][-1], token, probe=True))
        for level in levels[1:]:
            nodes.append([self._child(above, token, probe=True) for above, token in zip(nodes[-1], level, strict=True)])
        return nodes

    def tree(self) -> DraftTree:
        tokens, parents = (np.asarray(values, dtype=np.int32) for values in (self._tokens, self._parents))
        return DraftTree(tokens, parents, probe=np.asarray(self._probe, dtype=np.bool_) if any(self._probe) else None)

    def _child(self, parent: int, token: int, probe: bool) -> int:
        node = self._known.get((parent, token))
        if node is None:
            node = self._known[parent, token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
            self._probe.append(probe)
        return node
