"""Trees that grow level by level from one model's logits: draws with and without replacement, and best guesses.

How many draws a node gets follows from its level and from what was drawn above it, never from the values drawn
there: that is what keeps sampled trees exact (docs/exactness.md 3, 4).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np
import torch
from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.drafting.second_models.draft_law import DraftLaw, ranked_by_noise
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw
from headstart.passes.runner import Span
from headstart.sampling.noise import Stream


class GrowingTree(ABC):
    """The nodes so far, and those whose children come next.

    Args:
        sequence: to be drafted for.
        law: of the draft.
        branching: [level] children of a node.
    """

    def __init__(self, sequence: SequenceView, law: DraftLaw, branching: Sequence[int]) -> None:
        self.sequence = sequence
        self.law = law
        self.branching = branching
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.paths: dict[int, list[int]] = {ROOT: []}
        """node -> tokens after the root down to the node."""
        self.frontier: list[int] = [ROOT]
        """Nodes of the last level."""
        self.level = 0

    @property
    def finished(self) -> bool:
        return self.level == len(self.branching) or not self.frontier

    @property
    def root_position(self) -> int:
        return len(self.sequence.tokens) - 1

    def grow(self, logits: Tensor) -> None:
        """Add a level: ``logits`` [frontier, vocab] after the nodes of the frontier."""
        first_new = len(self.tokens)
        self.expand(dict(zip(self.frontier, logits, strict=True)), self.branching[self.level])
        self.frontier = list(range(first_new, len(self.tokens)))
        self.level += 1

    @abstractmethod
    def expand(self, logits: dict[int, Tensor], width: int) -> None:
        """Give each of the nodes up to ``width`` children; a node without the confidence asked for gets none."""

    def tree(self) -> DraftTree:
        """The draft as it is."""
        return DraftTree(*self.structure())

    def span(self) -> Span:
        """All nodes as rows after the root. The frontier's stand last."""
        return Span(self.sequence.id, *self.structure())

    def structure(self) -> tuple[IntArray, IntArray]:
        """Tokens and parents, int32 [node]."""
        return np.asarray(self.tokens, dtype=np.int32), np.asarray(self.parents, dtype=np.int32)

    def add(self, parent: int, token: int) -> int:
        """A new node."""
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.paths[node] = [*self.paths[parent], token]
        return node

    def law_after(self, node: int, logits: Tensor) -> Tensor | None:
        """float64 [vocab]; None where the law is less confident than asked for and the tree ends."""
        law = self.law.probs(logits, self.paths[node])
        return law if self.law.is_confident(logits, self.paths[node], law) else None


class DrawnTree(GrowingTree):
    """A tree of draws, each of which names the row of ``draft_probs`` that it was drawn from."""

    kind: TreeLaw

    def __init__(self, sequence: SequenceView, law: DraftLaw, branching: Sequence[int]) -> None:
        super().__init__(sequence, law, branching)
        self.rows: list[Tensor] = []
        self.draws: list[tuple[int, int, int]] = []
        """[draw] parent, node, row."""

    def tree(self) -> DraftTree:
        if not self.draws:
            return DraftTree.empty()
        columns = np.asarray(self.draws, dtype=np.int32).T
        return DraftTree(*self.structure(), self.kind, Draws(*columns), torch.stack(self.rows))


class SampledTree(DrawnTree):
    """Independent draws (Miao et al. 2024, SpecInfer): every draw has draws below it, duplicates too.

    With the branching (K, 1, 1, ...) these are K chains merged in a prefix tree.
    """

    kind = TreeLaw.SAMPLED

    def __init__(self, sequence: SequenceView, law: DraftLaw, branching: Sequence[int]) -> None:
        super().__init__(sequence, law, branching)
        self._landed: list[int] = [ROOT]
        """[draw of the last level] node."""

    def expand(self, logits: dict[int, Tensor], width: int) -> None:
        rows: dict[int, int] = {}
        for node, row in logits.items():
            law = self.law_after(node, row)
            if law is not None:
                rows[node] = len(self.rows)
                self.rows.append(law)
        children: dict[tuple[int, int], int] = {}
        landed: list[int] = []
        for parent in [node for node in self._landed if node in rows for _ in range(width)]:
            law = self.rows[rows[parent]]
            token = self.sequence.noise.draw(Stream.DRAFT, self.root_position, len(self.draws), law)
            node = children.get((parent, token), len(self.tokens))
            if node == len(self.tokens):
                children[parent, token] = self.add(parent, token)
            self.draws.append((parent, node, rows[parent]))
            landed.append(node)
        self._landed = landed


class DistinctTree(DrawnTree):
    """Siblings drawn without replacement (Chen et al. 2024, Sequoia), fewer where the law has fewer tokens."""

    kind = TreeLaw.WITHOUT_REPLACEMENT

    def expand(self, logits: dict[int, Tensor], width: int) -> None:
        for parent, row in logits.items():
            law = self.law_after(parent, row)
            if law is None:
                continue
            drawn = self.sequence.noise.draw_distinct(Stream.DRAFT, self.root_position, parent + 1, law, width)
            self.draws += [(parent, self.add(parent, token), len(self.rows)) for token in drawn]
            self.rows.append(law)


class CoupledTree(GrowingTree):
    """Children are the tokens that the position's own noise picks first, second, ... (docs/exactness.md 6).

    The target picks with the same noise, so these are what it most likely says.
    """

    def expand(self, logits: dict[int, Tensor], width: int) -> None:
        for parent, row in logits.items():
            law = self.law_after(parent, row)
            if law is None:
                continue
            position = self.root_position + 1 + len(self.paths[parent])
            for token in ranked_by_noise(law, self.sequence.noise, position, width):
                self.add(parent, token)


class BeamTree(GrowingTree):
    """The likeliest paths of each level, as many as it may have nodes (as in Li et al. 2024, EAGLE-2)."""

    def __init__(self, sequence: SequenceView, law: DraftLaw, branching: Sequence[int]) -> None:
        super().__init__(sequence, law, branching)
        self._scores = {ROOT: 0.0}
        """node -> log-probability of its path."""
        self._size = 1

    def expand(self, logits: dict[int, Tensor], width: int) -> None:
        self._size *= width
        candidates: list[tuple[float, int, int]] = []
        for parent, row in logits.items():
            if not self.law.is_confident(row, self.paths[parent]):
                continue
            scores = self.law.scores(row, self.paths[parent])
            best = scores.topk(min(self._size, len(scores)))
            for score, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if score > -math.inf:
                    candidates.append((self._scores[parent] + score, parent, token))
        candidates.sort(key=lambda candidate: (-candidate[0], *candidate[1:]))
        for score, parent, token in candidates[: self._size]:
            self._scores[self.add(parent, token)] = score


def fit_branching(branching: Sequence[int], nodes: int, depth: int) -> tuple[int, ...]:
    """The branching cut to a budget: too deep levels first, then the widest and deepest one child at a time.

    Fixed before anything is drawn, so the tree never has more than ``nodes`` nodes whatever is drawn.
    """
    fitted = list(branching[: min(depth, nodes)])
    while count_nodes(fitted) > nodes:
        widest = max(range(len(fitted)), key=lambda level: (fitted[level], level))
        fitted[widest] -= 1
    return tuple(fitted)


def count_nodes(branching: Sequence[int]) -> int:
    """Nodes of a tree in which every node of a level has as many children as ``branching`` says."""
    return sum(accumulate(branching, mul))
