"""Suffix decoding (Oliaro et al. 2024, arXiv:2411.04975; scoring as in ArcticInference ``suffix_decoding``).

Every suffix of the text that occurred before proposes a tree of what followed it there: the likeliest nodes first,
by the product of relative frequencies along the path. A suffix of m tokens may propose m * factor + offset nodes;
the tree with the largest sum of probabilities wins, the longer suffix among equals. The frequencies come from a
suffix automaton of the sequence and, where asked for, from one of earlier requests' outputs.

ArcticInference divides by all occurrences of a string; here only those that something followed count, so a
suffix that occurred once before makes a certain guess, not one of 1/2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext, ScopedMemory
from headstart.drafting.continuations import (
    GRADE_RATES,
    GRADED_MATCHES,
    GRADED_RATIOS,
    NOTHING,
    Proposal,
    grow_best_first,
)
from headstart.drafting.history import HistoryDrafter
from headstart.drafting.methods.suffix.suffix_automaton import ROOT_STATE, SuffixAutomaton
from headstart.drafting.options import require
from headstart.drafting.text_store import TextStore
from headstart.passes.backend import TextBounds, TextIndex
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import Guesser, StretchDrafting, StretchLimits

_STORED_TOKENS = 1 << 15
"""Of a scope's texts that are looked through, where ``shared_tokens`` does not say: after a restart its first request
waits 40 ms for so many."""
_STORED_IN_PYTHON = 1 << 13
"""The same without a compiled index."""


@dataclass(frozen=True)
class SuffixOptions:
    tree_nodes: int = 15
    """Nodes of a tree at most (with the root one tile of 16 rows)."""
    max_depth: int = 64
    """Tokens of a matched suffix and the path below it at most."""
    factor: float = 4.0
    """Nodes allowed for each matched token. ArcticInference allows 1 and no offset; where a pass of 16 rows costs
    little more than one of 4, more pays: 1.75 instead of 1.57 tokens a round on mixed chat prompts."""
    offset: float = 4.0
    """Nodes allowed on top of that."""
    min_probability: float = 0.1
    """No node is proposed below this estimate."""
    shared_tokens: int = 0
    """How many output tokens of earlier requests are kept, the oldest forgotten first, some 0.2 KB each in compiled
    code and 0.7 KB in Python; 0: none, unless the engine has a ``drafter_store``, which keeps them. Requests of one
    scope (``DraftContext.scope_of``) then see by their speed what others wrote."""

    def __post_init__(self) -> None:
        require(self.tree_nodes >= 1, f"tree_nodes is {self.tree_nodes}; it must be 1 or more.")
        require(self.max_depth >= 2, f"max_depth is {self.max_depth}; it must be 2 or more.")
        require(self.factor >= 0, f"factor is {self.factor}; it must be 0 or more.")
        require(0 < self.min_probability <= 1, f"min_probability is {self.min_probability}; it must lie in (0, 1].")
        require(self.shared_tokens >= 0, f"shared_tokens is {self.shared_tokens}; it must be 0 (off) or more.")


def grow_tree(
    automaton: SuffixAutomaton, state: int, matched: int, nodes: int, depth: int, min_probability: float
) -> Proposal:
    """The likeliest continuations of a state's suffix of ``matched`` tokens, best first; among equals the one seen
    last."""
    following, count, latest = automaton.following, automaton.count, automaton.latest

    def children(state: int, probability: float) -> list[tuple[float, int, int]]:
        found = following[state]
        if len(found) < 2:
            return [(1.0, token, child) for token, child in found.items()]
        total = sum([count[child] for child in found.values()])
        floor = min_probability * total / probability
        ranked = sorted(
            [(-count[child], -latest[child], token) for token, child in found.items() if count[child] >= floor]
        )
        return [(-negative_count / total, token, found[token]) for negative_count, _, token in ranked]

    return grow_best_first(state, children, matched=matched, nodes=nodes, depth=depth)


class SuffixState:
    """One sequence's automaton, and how many tokens the sequence had when it was begun.

    Args:
        text: the automaton, the backend's own where it has one.
        beside: automata of texts of the same scope, which are guessed from, too; the backend's own are consulted by
            ``text`` itself.
        prediction: a text that the output is expected to resemble, learnt before the sequence's own.
    """

    def __init__(
        self,
        text: SuffixAutomaton | TextIndex,
        beside: Sequence[SuffixAutomaton],
        scope: Hashable,
        length: int,
        prediction: Sequence[int] = (),
    ) -> None:
        self.text, self.beside = text, beside
        self.scope = scope
        self.first_length = length
        self._prediction = prediction

    def extend(self, tokens: Sequence[int]) -> None:
        if self._prediction:
            self.text.extend(self._prediction)
            self.text.start_text()
            self._prediction = ()
        self.text.extend(tokens)


class SharedTexts:
    """Texts of one scope in two indexes: the older is dropped when the younger is full.

    Args:
        new: makes an empty index.
        max_tokens: of both together.
    """

    def __init__(self, new: Callable[[], SuffixAutomaton | TextIndex], max_tokens: int) -> None:
        self._new = new
        self._half = max(1, max_tokens // 2)
        self._size, self._newest = 0, 0
        self.indexes: list[SuffixAutomaton | TextIndex] = []
        """Youngest first."""

    def read(self, store: TextStore, scope: Hashable) -> None:
        """Learn what has come since the last time; of a very long text the end."""
        self._newest, texts = store.since(scope, self._newest, 2 * self._half)
        for tokens in texts:
            tokens = tokens[-self._half :]
            if not self.indexes or self._size + len(tokens) > self._half:
                self.indexes, self._size = [self._new(), *self.indexes[:1]], 0
            self._size += len(tokens)
            self.indexes[0].start_text()
            self.indexes[0].extend(tokens)


class SuffixDrafter(HistoryDrafter[SuffixState]):
    """A tree of what followed the longest repeated suffixes."""

    Options = SuffixOptions
    grade_rates = GRADE_RATES

    def __init__(self, context: DraftContext, options: SuffixOptions) -> None:
        super().__init__()
        self._options = options
        self._scope_of = context.scope_of
        self._kit = context.kit
        self._texts = context.texts or TextStore()
        self._texts.is_read = True
        self._adds_outputs = bool(options.shared_tokens) or self._texts.keeps_outputs
        stored = _STORED_IN_PYTHON if isinstance(self._new_text(), SuffixAutomaton) else _STORED_TOKENS
        self._shared = ScopedMemory(lambda: SharedTexts(self._new_text, options.shared_tokens or stored))

    def new_state(self, sequence: SequenceView) -> SuffixState:
        prediction = sequence.speculation.prediction
        ids = () if isinstance(prediction, str) else prediction
        scope, text = self._scope_of(sequence), self._new_text()
        shared = self._shared[scope]
        shared.read(self._texts, scope)
        if not isinstance(text, SuffixAutomaton):
            for index in shared.indexes:
                text.consult(index)
        beside = [index for index in shared.indexes if isinstance(index, SuffixAutomaton)]
        return SuffixState(text, beside, scope, len(sequence.tokens), ids)

    def read_source(self, state: SuffixState, tokens: Sequence[int]) -> None:
        state.text.extend(tokens)
        state.text.start_text()

    def _new_text(self) -> SuffixAutomaton | TextIndex:
        options = self._options
        bounds = TextBounds(
            options.max_depth,
            GRADED_MATCHES,
            GRADED_RATIOS,
            options.factor,
            options.offset,
            options.min_probability,
            options.tree_nodes,
        )
        index = self._kit and self._kit.text_index(bounds)
        return index or SuffixAutomaton(options.max_depth)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        guessers = []
        for sequence in sequences:
            text = self.caught_up(sequence.id).text
            if isinstance(text, SuffixAutomaton):
                return None
            guessers.append((Guesser(text, partial(self._finish, sequence, text)),))
        return StretchDrafting(guessers)

    def _finish(self, sequence: SequenceView, text: TextIndex) -> None:
        """A stretch is over. Where its last rounds do not count, the text may have gone further than the sequence."""
        length = self._lengths[sequence.id] + text.learnt
        if length > len(sequence.tokens):
            self.begin(sequence)
        else:
            self._lengths[sequence.id] = length

    def end(self, sequence_id: int) -> None:
        state = self._states.get(sequence_id)
        if state is not None and self._adds_outputs:
            self._texts.add(state.scope, self._sequences[sequence_id].tokens[state.first_length :])
        super().end(sequence_id)

    def draft(self, state: SuffixState, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        return self._guess(state, sequence, (), budget)

    def proceed(self, sequence: SequenceView, path: Sequence[int], budget: DraftBudget) -> DraftTree:
        """See ``Continuing``."""
        return self._guess(self.caught_up(sequence.id), sequence, path, budget)

    def _guess(self, state: SuffixState, sequence: SequenceView, path: Sequence[int], budget: DraftBudget) -> DraftTree:
        """The best tree behind the text's end and a path."""
        if not isinstance(state.text, SuffixAutomaton):
            tokens, parents, grades = state.text.guess(budget.nodes, budget.depth, path)
            return DraftTree(tokens, parents, grades=grades) if len(tokens) else DraftTree.empty()
        depth = min(budget.depth, budget.nodes, self._options.tree_nodes, self._options.max_depth - 1)
        longest = self._options.max_depth - depth
        end = [*sequence.tokens[-longest:], *path][-longest:]
        place = state.text.longest_suffix(end) if path else state.text.tip
        best = self._better(NOTHING, state.text, *place, budget.nodes, depth)
        for automaton in state.beside:
            matched = automaton.longest_suffix(end)
            best = self._better(best, automaton, *matched, budget.nodes, depth)
        return best.tree()

    def _better(
        self, best: Proposal, automaton: SuffixAutomaton, state: int, matched: int, nodes: int, depth: int
    ) -> Proposal:
        """``best``, or a higher-scored tree below one of the suffixes of a matched string."""
        options, link, length = self._options, automaton.link, automaton.length
        matched = min(matched, options.max_depth - depth)
        while state != ROOT_STATE:
            if length[link[state]] < matched:
                allowed = min(nodes, options.tree_nodes, int(matched * options.factor + options.offset))
                # No tree scores more than its nodes, and shorter suffixes are allowed fewer of them.
                if allowed <= best.score:
                    break
                if automaton.following[state]:
                    proposal = grow_tree(automaton, state, matched, allowed, depth, options.min_probability)
                    if proposal.score > best.score:
                        best = proposal
                matched = length[link[state]]
            state = link[state]
        return best
