"""A draft model's own beam search ahead of a target's (Leviathan et al. 2023, appendix A.4).

The draft model goes on from where the target's beams stand, with their scores, and searches more widely than they do:
what it visits are the guesses. One pass a level reads the nodes of all beams of all groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import WIDER, groups_of
from headstart.drafting.second_models.draft_law import DraftLaw, DraftLaws
from headstart.drafting.second_models.second_model import SecondModel
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.passes.runner import Span


@dataclass
class _Tree:
    """The nodes below one beam so far."""

    sequence: SequenceView
    law: DraftLaw
    end_tokens: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)
    """Node -> log-probability of the beam and the path down to it."""
    paths: dict[int, list[int]] = field(default_factory=lambda: {ROOT: []})
    frontier: list[int] = field(default_factory=lambda: [ROOT])
    """Nodes of the last level."""

    def add(self, parent: int, token: int, score: float) -> None:
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores[node] = score
        self.paths[node] = [*self.paths[parent], token]
        self.frontier.append(node)

    def candidates(self, rows: Tensor, count: int) -> list[tuple[float, int, int]]:
        """The best continuations of the last level: score, parent, token; ``rows`` are the logits after it."""
        found = []
        for node, row in zip(self.frontier, rows, strict=True):
            best = self.law.scores(row, self.paths[node]).topk(min(count + len(self.end_tokens), row.shape[-1]))
            for score, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if score > -np.inf and token not in self.end_tokens:
                    found.append((self.scores[node] + score, node, token))
        return found

    def tree(self) -> DraftTree:
        return DraftTree(np.asarray(self.tokens, dtype=np.int32), np.asarray(self.parents, dtype=np.int32))

    def span(self) -> Span:
        """All nodes as rows after the root. Those of the last level stand last."""
        draft = self.tree()
        return Span(self.sequence.id, draft.tokens, draft.parents)


class _Group:
    """The beams of one search."""

    def __init__(self, trees: Sequence[_Tree], level_nodes: int, nodes: int, depth: int) -> None:
        self.trees = trees
        self._level_nodes = level_nodes
        self._nodes = nodes
        self._depth = depth

    @property
    def finished(self) -> bool:
        return self._depth <= 0 or self._nodes <= 0

    def grow(self, logits: Mapping[int, Tensor]) -> None:
        """Add a level: id -> logits [frontier, vocab] after a beam's last level; beams without are left behind."""
        count = min(self._level_nodes, self._nodes)
        level = [
            (-score, place, parent, token)
            for place, tree in enumerate(self.trees)
            if tree.frontier and tree.sequence.id in logits
            for score, parent, token in tree.candidates(logits[tree.sequence.id], count)
        ]
        for tree in self.trees:
            tree.frontier = []
        for score, place, parent, token in sorted(level)[:count]:
            self.trees[place].add(parent, token, -score)
        self._nodes -= min(count, len(level))
        self._depth = self._depth - 1 if level else 0


def draft_beams(
    model: SecondModel,
    laws: DraftLaws,
    draft_tokens: int,
    sequences: Sequence[SequenceView],
    budgets: Sequence[DraftBudget],
) -> list[DraftTree]:
    """Trees for beams, searched group by group; empty where the model finds no room."""
    trees = []
    for sequence in sequences:
        beam = beam_of(sequence)
        assert beam is not None
        trees.append(_Tree(sequence, laws.of(sequence), beam.end_tokens, scores={ROOT: beam.score}))
    groups = []
    for beam, places in groups_of(sequences):
        budget = budgets[places[0]]
        depth = min(draft_tokens, budget.depth)
        groups.append(_Group([trees[place] for place in places], WIDER * beam.width, budget.group_nodes, depth))
    growing = [group for group in groups if not group.finished]
    caught_up = model.catch_up([tree.sequence for group in growing for tree in group.trees])
    logits = {sequence_id: row[None] for sequence_id, row in caught_up.items()}
    while growing:
        for group in growing:
            group.grow(logits)
        growing = [group for group in growing if not group.finished]
        last = {tree.sequence.id: len(tree.frontier) for group in growing for tree in group.trees if tree.frontier}
        spans = model.fitting([tree.span() for group in growing for tree in group.trees if tree.frontier])
        with model.passing(spans) as outputs:
            logits = {
                span.sequence_id: model.fit(output.logits[-last[span.sequence_id] :])
                for span, output in zip(spans, outputs, strict=True)
            }
    return [tree.tree() for tree in trees]
