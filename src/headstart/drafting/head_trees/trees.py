"""Trees that grow level by level from the log-probabilities of a head, for several sequences at once.

Nodes are point masses, so a tree may be pruned and re-ranked by what it holds (docs/exactness.md 5).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.beam_trees import chosen_nodes, kept_mask
from headstart.drafting.heads.head_pass import GrownTree, PathBounds
from headstart.drafting.heads.path_trees import IMPOSSIBLE, cut_tree
from headstart.drafting.tree_templates import TreeTemplate
from headstart.passes.draft_tree import ROOT, DraftTree

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]

_CONFIDENCE = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Bounds of the classes that guesses are graded in; the first level has classes of its own, as have all others."""
LOG_CONFIDENCE = [math.log(bound) for bound in _CONFIDENCE]
_DEEPER = len(_CONFIDENCE) + 1
"""The first class of the other levels."""
_BOUNDS = (0.0, *_CONFIDENCE, 1.0)
CONFIDENCE_RATES = tuple((low + high) / 2 for low, high in pairwise(_BOUNDS)) * 2
"""[grade] how often guesses of a class hold if the head is as sure as it should be."""


def path_bounds(min_probability: float) -> PathBounds:
    """How likely a path must be (``DraftBudget.min_probability``).

    What is impossible has less, whatever is asked for. Just above the bound of paths hardly any child would pass, and
    looking for one takes a step: that of parents is two thirds of the way up, so that a path of two guesses that are
    alike may have a third one like them.
    """
    min_log_prob = math.log(min_probability) if min_probability > 0 else float(IMPOSSIBLE) / 2
    return PathBounds(min_log_prob, min_log_prob * 2 / 3)


def confident_tree(tokens: NDArray[np.int32], parents: NDArray[np.int32], scores: Scores) -> DraftTree:
    """Guesses with how likely a head holds each to be, given its parent: as a grade, and as such.

    Args:
        tokens: [node].
        parents: [node].
        scores: [node] log-probabilities of paths.
    """
    paths, above = scores.tolist(), parents.tolist()
    steps = [score if parent == ROOT else score - paths[parent] for parent, score in zip(above, paths, strict=True)]
    grades = [
        bisect_left(LOG_CONFIDENCE, step) + (0 if parent == ROOT else _DEEPER)
        for parent, step in zip(above, steps, strict=True)
    ]
    return DraftTree(tokens, parents, grades=np.array(grades, dtype=np.int32), chances=np.exp(steps))


def pruned_trees(
    grown: Sequence[GrownTree], sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]
) -> list[DraftTree]:
    """Drafts with grades; those of beams, which grew under ``wide_budgets``, cut as their search would choose."""
    trees = [confident_tree(*tree) for tree in grown]
    parents, scores = [tree.parents.tolist() for tree in grown], [tree.scores.tolist() for tree in grown]
    tokens = [tree.token_list for tree in trees]
    for place, kept in chosen_nodes(sequences, budgets, tokens, parents, scores).items():
        trees[place] = trees[place].restricted_to(kept_mask(kept, len(trees[place])))
    return trees


@dataclass(frozen=True)
class Beams:
    """The nodes of one level whose children come next, for each sequence."""

    tokens: Ids
    """[sequence, beam]."""
    parents: Ids
    """[sequence, beam] beam of the level before."""


class HeadTrees(ABC):
    """One growing tree for each of ``count`` sequences, all of one shape until they are cut to their budgets."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._levels: list[tuple[Ids, Ids, Scores]] = []
        """Tokens, parents (node or ROOT) and scores, each [sequence, node of the level]."""
        self._frontier: Ids = np.full((count, 1), ROOT, dtype=np.int64)
        """[sequence, beam] nodes whose children come next."""
        self._size = 0

    @abstractmethod
    def grow(self, log_probs: Scores, tokens: Ids) -> Beams | None:
        """Add a level from the best children of each beam, [sequence, beam, rank], the likeliest first.

        Returns:
            The nodes to go on from; None where the trees are as deep as they get.
        """

    def _add(self, tokens: Ids, parents: Ids, scores: Scores) -> int:
        """Append a level; its first node."""
        first = self._size
        self._levels.append((tokens, parents, scores))
        self._size += tokens.shape[1]
        return first

    def trees(self, max_nodes: int, budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """The best nodes of each tree within its budget."""
        tokens = np.concatenate([level[0] for level in self._levels], axis=1)
        parents = np.concatenate([level[1] for level in self._levels], axis=1)
        scores = np.concatenate([level[2] for level in self._levels], axis=1)
        depths = np.repeat(np.arange(1, len(self._levels) + 1), [level[0].shape[1] for level in self._levels])
        return [
            self.tree_of(
                *cut_tree(tokens[row], parents[row], scores[row], depths, min(max_nodes, budget.nodes), budget.depth)
            )
            for row, budget in enumerate(budgets)
        ]

    def tree_of(self, tokens: NDArray[np.int32], parents: NDArray[np.int32], scores: Scores) -> DraftTree:
        """Guesses, and how sure they are where scores tell."""
        return DraftTree(tokens, parents)


class ConfidenceTrees(HeadTrees):
    """The likeliest paths (Li et al. 2024, EAGLE-2, section 4): each level goes on from its best nodes, and of all
    nodes that were seen the best stay.

    Args:
        count: sequences.
        width: nodes of a level that get children.
        bounds: of the path to a node: less likely ones are left out, or get no children.
    """

    def __init__(self, count: int, width: int, bounds: PathBounds | None = None) -> None:
        super().__init__(count)
        self._width = width
        self._least, self._least_of_parents = map(np.float32, bounds or path_bounds(0.0))
        self._scores: Scores = np.zeros((count, 1), dtype=np.float32)

    def grow(self, log_probs: Scores, tokens: Ids) -> Beams | None:
        ranks = log_probs.shape[2]
        # Rounding must not lift a child above its parent, nor something that is not a number break the order.
        steps = np.where(log_probs > IMPOSSIBLE, np.minimum(log_probs, 0), IMPOSSIBLE)
        scores = (self._scores[:, :, None] + steps).reshape(self._count, -1)
        scores = np.where(scores >= self._least, scores, IMPOSSIBLE)
        flat = tokens.reshape(self._count, -1)
        first = self._add(flat, np.repeat(self._frontier, ranks, axis=1), scores)
        scores = np.where(scores >= self._least_of_parents, scores, IMPOSSIBLE)
        # As many nodes go on as the sequence with most of them has.
        width = min(self._width, int((scores > IMPOSSIBLE).sum(axis=1).max()))
        if not width:
            return None
        best = np.argsort(-scores, axis=1, kind="stable")[:, :width]
        self._scores = np.take_along_axis(scores, best, axis=1)
        self._frontier = best + first
        return Beams(np.take_along_axis(flat, best, axis=1), best // ranks)

    def tree_of(self, tokens: NDArray[np.int32], parents: NDArray[np.int32], scores: Scores) -> DraftTree:
        return confident_tree(tokens, parents, scores)


class TemplateTrees(HeadTrees):
    """A static tree of ranks.

    Args:
        count: sequences.
        template: parents before children, the likeliest nodes first.
    """

    def __init__(self, count: int, template: TreeTemplate) -> None:
        super().__init__(count)
        self._template = template
        self._inner = np.isin(np.arange(len(template)), template.parents)
        self._beams = {ROOT: 0}
        """node of the template -> its beam, for those of the last level that have children."""
        self._nodes = {ROOT: ROOT}
        """node of the template -> node of the tree."""

    def grow(self, log_probs: Scores, tokens: Ids) -> Beams | None:
        template, depth = self._template, len(self._levels) + 1
        level = [
            node
            for node in np.flatnonzero(template.depths == depth).tolist()
            if template.ranks[node] < tokens.shape[2] and int(template.parents[node]) in self._beams
        ]
        if not level:
            return None
        beams = np.array([self._beams[int(template.parents[node])] for node in level])
        parents = np.array([self._nodes[int(template.parents[node])] for node in level])
        # The template's order is the score, so the best nodes are its first ones.
        scores = -np.array(level, dtype=np.float32)
        chosen = tokens[:, beams, template.ranks[level]]
        first = self._add(chosen, *(np.tile(row, (self._count, 1)) for row in (parents, scores)))
        self._nodes |= {node: first + place for place, node in enumerate(level)}
        inner = [place for place, node in enumerate(level) if self._inner[node]]
        self._beams = {level[place]: beam for beam, place in enumerate(inner)}
        if not inner:
            return None
        return Beams(chosen[:, inner], np.tile(beams[inner], (self._count, 1)))
