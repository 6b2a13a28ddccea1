"""PaSS (Monea et al. 2023, arXiv:2311.13581): the target drafts for itself after learnt inputs.

The paper runs the target twice, once after its look-ahead tokens and once to verify. Here they ride in the pass that
verifies: after the root and after every guess stand probe rows that read look-ahead embeddings, and those after the
last accepted one say what comes after the next root. So a round is one pass, and the first of a sequence guesses
nothing. Guesses are the favourites there, point masses, as passes return top ids and not laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import check_head, open_head
from headstart.drafting.options import require
from headstart.passes.batch import RowInputs
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings


@dataclass(frozen=True)
class PassOptions:
    model: str | None = None
    """Directory of the look-ahead embeddings, which must be named."""
    draft_tokens: int = 3
    """Guesses of a draft, and look-ahead rows after the root and each guess, at most."""
    tree_nodes: int = 15
    """Guesses and look-ahead rows of a draft at most (three guesses with three rows each; with the root one tile)."""

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "tree_nodes"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}; it must be 1 or more.")

    def check_files(self) -> None:
        """As ``options.check_files`` has it."""
        check_head(self.model)


class PassDrafter:
    """A chain of what the target expected after its look-ahead tokens in the pass before."""

    Options = PassOptions
    needs = TargetSignals(top_ids=1)

    def __init__(self, context: DraftContext, options: PassOptions) -> None:
        head = open_head(context, options.model, "pass", LookaheadEmbeddings)
        self._embeddings = head.embeddings.detach()
        self._slots = min(options.draft_tokens, head.slots)
        self._tree_nodes = options.tree_nodes
        self._expected: dict[int, tuple[int, list[int]]] = {}
        """id -> position of the root, and the tokens expected after it."""

    def begin(self, sequence: SequenceView) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        self._expected.pop(sequence_id, None)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            self._expected.pop(outcome.sequence.id, None)
            if outcome.top_ids is None:
                continue
            end = outcome.accepted[-1] if outcome.accepted else ROOT
            # Row 0 is the root, node i stands in row i + 1.
            found = [int(outcome.top_ids[node + 1, 0]) for node in _probes_behind(outcome.draft, end)]
            if found:
                self._expected[outcome.sequence.id] = (len(outcome.sequence.tokens) - 1, found)

    def _draft(self, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        position, expected = self._expected.get(sequence.id, (-1, []))
        guesses = expected if position == len(sequence.tokens) - 1 else []
        nodes, depth = min(budget.nodes, self._tree_nodes), budget.depth
        if min(nodes, depth) < 1:
            return DraftTree.empty()
        count, slots = self._shape(len(guesses), nodes, depth)
        return self._tree(guesses[:count], slots)

    def _shape(self, known: int, nodes: int, depth: int) -> tuple[int, int]:
        """How many guesses, and how many look-ahead rows after the root and each of them."""
        if not known:
            return 0, min(self._slots, nodes, depth)
        # Guesses and the rows after the last of them share the depth.
        slots = min(self._slots, max(depth // 2, 1))
        for guesses in range(min(known, depth - slots), 0, -1):
            if guesses + (guesses + 1) * slots <= nodes:
                return guesses, slots
        # Too little room for both: guess now, look ahead in the next round.
        return min(known, nodes, depth), 0

    def _tree(self, guesses: Sequence[int], slots: int) -> DraftTree:
        count = len(guesses)
        tokens, parents = list(guesses), list(range(ROOT, count - 1))
        for behind in range(ROOT, count) if slots else ():
            parents += [behind, *range(len(parents), len(parents) + slots - 1)]
            tokens += [0] * slots
        if not slots:
            return DraftTree.chain(tokens)
        rows = np.arange(count, len(tokens), dtype=np.int32)
        values = self._embeddings[torch.arange(len(rows)) % slots]
        return DraftTree(
            np.asarray(tokens, dtype=np.int32),
            np.asarray(parents, dtype=np.int32),
            probe=np.arange(len(tokens)) >= count,
            inputs=RowInputs(rows, values),
        )


def _probes_behind(draft: DraftTree, node: int) -> list[int]:
    """The chain of probe nodes after a node."""
    if draft.probe is None:
        return []
    chain = []
    for probe in np.flatnonzero(draft.probe).tolist():
        if draft.parents[probe] == node:
            chain.append(probe)
            node = probe
    return chain
