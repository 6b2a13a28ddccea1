"""Trees that grow level by level from the log-probabilities of a head, for several sequences at once.

Nodes are point masses, so a tree may be pruned and re-ranked by what it holds (methods-exact A5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.base import DraftBudget
from headstart.drafting.tree_templates import TreeTemplate

_IMPOSSIBLE = -1e30
_CONFIDENCE = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995])
"""Bounds of the classes that guesses are graded in; the first level has classes of its own, as have all others."""


@dataclass(frozen=True)
class Beams:
    """The nodes of one level whose children come next, for each sequence."""

    tokens: Tensor
    """int64 [sequence, beam]."""
    parents: Tensor
    """int64 [sequence, beam] beam of the level before."""


class HeadTrees(ABC):
    """One growing tree for each of ``count`` sequences, all of one shape until they are cut to their budgets."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._levels: list[tuple[Tensor, Tensor, Tensor]] = []
        """Tokens, parents (node or ROOT) and scores, each [sequence, node of the level]."""
        self._frontier = torch.full((count, 1), ROOT)
        """[sequence, beam] nodes whose children come next."""
        self._size = 0

    @abstractmethod
    def grow(self, log_probs: Tensor, tokens: Tensor) -> Beams | None:
        """Add a level from the best children of each beam, [sequence, beam, rank], the likeliest first.

        Returns:
            The nodes to go on from; None where the tree is as deep as it gets.
        """

    def _add(self, tokens: Tensor, parents: Tensor, scores: Tensor) -> int:
        """Append a level; its first node."""
        first = self._size
        self._levels.append((tokens, parents, scores))
        self._size += tokens.shape[1]
        return first

    def trees(self, max_nodes: int, budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """The best nodes of each tree within its budget."""
        tokens, parents, scores = (
            torch.cat([level[part] for level in self._levels], dim=1).cpu().numpy() for part in range(3)
        )
        depths = np.repeat(np.arange(1, len(self._levels) + 1), [level[0].shape[1] for level in self._levels])
        return [
            _best(
                tokens[row],
                parents[row],
                scores[row],
                depths,
                self.grades(parents[row], scores[row], depths),
                min(max_nodes, budget.nodes),
                budget.depth,
            )
            for row, budget in enumerate(budgets)
        ]

    def grades(
        self, parents: NDArray[np.int64], scores: NDArray[np.float32], depths: NDArray[np.int64]
    ) -> NDArray[np.int32] | None:
        """[node] classes of confidence (``DraftTree.grades``), where scores tell."""
        return None


class ConfidenceTrees(HeadTrees):
    """The likeliest paths (Li et al. 2024, EAGLE-2, section 4): each level goes on from its best nodes, and of all
    nodes that were seen the best stay.

    Args:
        count: sequences.
        width: nodes of a level that get children.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__(count)
        self._width = width
        self._scores = torch.zeros(count, 1)

    def grow(self, log_probs: Tensor, tokens: Tensor) -> Beams | None:
        ranks = log_probs.shape[2]
        # Rounding must not lift a child above its parent, nor something that is not a number break the order.
        steps = log_probs.clamp(max=0).nan_to_num(nan=_IMPOSSIBLE, neginf=_IMPOSSIBLE)
        scores = (self._scores[:, :, None] + steps).flatten(1)
        parents = self._frontier[:, :, None].expand(-1, -1, ranks).flatten(1)
        flat = tokens.flatten(1)
        first = self._add(flat, parents, scores)
        self._scores, best = scores.topk(min(self._width, scores.shape[1]))
        self._frontier = best + first
        return Beams(flat.gather(1, best), best // ranks)

    def grades(
        self, parents: NDArray[np.int64], scores: NDArray[np.float32], depths: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """How likely the head holds a guess to be, given its parent."""
        above = np.where(parents == ROOT, 0.0, scores[parents])
        grades = np.searchsorted(_CONFIDENCE, np.exp(np.minimum(scores - above, 0.0)))
        return (grades + (depths > 1) * (len(_CONFIDENCE) + 1)).astype(np.int32)


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

    def grow(self, log_probs: Tensor, tokens: Tensor) -> Beams | None:
        template, depth = self._template, len(self._levels) + 1
        level = [
            node
            for node in np.flatnonzero(template.depths == depth).tolist()
            if template.ranks[node] < tokens.shape[2] and int(template.parents[node]) in self._beams
        ]
        if not level:
            return None
        beams = torch.tensor([self._beams[int(template.parents[node])] for node in level])
        ranks = torch.tensor(template.ranks[level])
        parents = torch.tensor([self._nodes[int(template.parents[node])] for node in level])
        # The template's order is the score, so the best nodes are its first ones.
        scores = -torch.tensor(level, dtype=torch.float32)
        chosen = tokens[:, beams, ranks]
        first = self._add(chosen, parents.expand(self._count, -1), scores.expand(self._count, -1))
        self._nodes |= {node: first + place for place, node in enumerate(level)}
        inner = [place for place, node in enumerate(level) if self._inner[node]]
        self._beams = {level[place]: beam for beam, place in enumerate(inner)}
        if not inner:
            return None
        return Beams(chosen[:, inner], beams[inner].expand(self._count, -1))


def _best(
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    scores: NDArray[np.float32],
    depths: NDArray[np.int64],
    grades: NDArray[np.int32] | None,
    nodes: int,
    depth: int,
) -> DraftTree:
    """The ``nodes`` best of a tree's nodes down to ``depth``. At equal scores the shallower one is better, so a
    node's parent always comes with it."""
    order = np.lexsort((np.arange(len(tokens)), depths, -scores))
    order = order[(depths[order] <= depth) & (scores[order] > _IMPOSSIBLE / 2)]
    kept = np.sort(order[:nodes])
    place = np.full(len(tokens) + 1, ROOT, dtype=np.int32)
    place[kept] = np.arange(len(kept))
    classes = None if grades is None else grades[kept]
    return DraftTree(tokens[kept].astype(np.int32), place[parents[kept]], grades=classes)
