"""Token recycling (Luo et al. 2024, "Turning Trash into Treasure", arXiv:2408.08696).

Every verified row yields the target's best next tokens; usually all but one are thrown away. Here they are kept: a
matrix maps each token to the ids that were best after it the last time a row read it, in a rejected guess too. A
static tree of (path of ranks) is filled from it, beginning at the root's token. The matrix outlives requests. Rows
that were never written guess nothing (the paper's matrix begins with zeros).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.beam_trees import chosen_nodes, kept_mask, path_scores, wide_budgets
from headstart.drafting.context import DraftContext, ScopedMemory
from headstart.drafting.grades import grade_of_place
from headstart.drafting.options import require
from headstart.drafting.tree_templates import rank_tree
from headstart.passes.draft_tree import ROOT, DraftTree

TOP_IDS = 8
"""Next tokens kept for each token."""

LEVEL_SIZES = (8, 21, 25, 15, 8, 3)
"""Nodes on each level of the paper's tree of 80."""

RANK_PROBABILITIES = (0.39, 0.09, 0.047, 0.03, 0.026, 0.025, 0.02, 0.013)
"""How often a warm row names the next token, by rank: measured on 3,000 greedy tokens of SmolLM2-135M."""

GRADE_RATES = (
    *(0.21, 0.09, 0.05, 0.03, 0.02, 0.02, 0.01, 0.01),
    *(0.32, 0.10, 0.06, 0.03, 0.02, 0.02, 0.01, 0.01),
    *(0.45, 0.10, 0.06, 0.03, 0.02, 0.02, 0.01, 0.01),
    *(0.70, 0.10, 0.06, 0.03, 0.02, 0.02, 0.01, 0.01),
)
"""By depth and rank among siblings: how often guesses hold while the matrix fills, measured on 2,800 greedy tokens of
SmolLM2-135M after the prompts that ship."""


@dataclass(frozen=True)
class RecyclingOptions:
    tree_nodes: int = 15
    """Nodes of a tree at most (with the root one tile of 16 rows), 80 in the paper."""

    def __post_init__(self) -> None:
        require(
            1 <= self.tree_nodes <= sum(LEVEL_SIZES),
            f"tree_nodes is {self.tree_nodes}; it must lie in [1, {sum(LEVEL_SIZES)}].",
        )


class RecyclingDrafter:
    """A tree over the target's own runner-up tokens."""

    Options = RecyclingOptions
    needs = TargetSignals(top_ids=TOP_IDS)
    grade_rates = GRADE_RATES

    def __init__(self, context: DraftContext, options: RecyclingOptions) -> None:
        self._options = options
        self._scope_of = context.scope_of
        # One row more than there are tokens: the row -1 of an unknown token, as cold as all are at first.
        self._matrices = ScopedMemory(lambda: np.full((context.vocab_size + 1, TOP_IDS), -1, dtype=np.int32))
        self._template = rank_tree(LEVEL_SIZES, RANK_PROBABILITIES)
        places = zip(self._template.depths.tolist(), self._template.ranks.tolist(), strict=True)
        self._grades = np.array([grade_of_place(depth, rank) for depth, rank in places], dtype=np.int32)
        self._scores = path_scores(self._template.parents, np.log(RANK_PROBABILITIES)[self._template.ranks])
        """[node of the template] log-probability of its path, for beams."""
        self._levels = [np.flatnonzero(self._template.depths == depth) for depth in range(1, len(LEVEL_SIZES) + 1)]

    def begin(self, sequence: SequenceView) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        wide = wide_budgets(sequences, budgets)
        drafts = [self._draft(sequence, budget) for sequence, budget in zip(sequences, wide, strict=True)]
        scores = [self._scores[nodes].tolist() for _, nodes in drafts]
        trees = [tree for tree, _ in drafts]
        tokens, parents = [tree.token_list for tree in trees], [tree.parents.tolist() for tree in trees]
        for place, kept in chosen_nodes(sequences, budgets, tokens, parents, scores).items():
            trees[place] = trees[place].restricted_to(kept_mask(kept, len(trees[place])))
        return trees

    def _draft(self, sequence: SequenceView, budget: DraftBudget) -> tuple[DraftTree, NDArray[np.int64]]:
        """The tree, and the template's nodes that it consists of."""
        matrix, template = self._matrices[self._scope_of(sequence)], self._template
        tokens = np.full(len(template) + 1, -1, dtype=np.int32)
        tokens[ROOT] = sequence.tokens[-1]
        for level in self._levels[: budget.depth]:
            tokens[level] = matrix[tokens[template.parents[level]], template.ranks[level]]
        most = budget.nodes if beam_of(sequence) is not None else min(self._options.tree_nodes, budget.nodes)
        kept = np.flatnonzero(tokens[:ROOT] >= 0)[:most]
        nodes = np.full(len(tokens), ROOT, dtype=np.int32)
        nodes[kept] = np.arange(len(kept))
        return DraftTree(tokens[kept], nodes[template.parents[kept]], grades=self._grades[kept]), kept

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            if outcome.top_ids is not None:
                best = outcome.top_ids[:, :TOP_IDS]
                # Where a token was read in several rows, the last of them stays.
                self._matrices[self._scope_of(outcome.sequence)][outcome.row_tokens, : best.shape[1]] = best

    def end(self, sequence_id: int) -> None:
        pass
