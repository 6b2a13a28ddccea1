"""The algebra of draft trees: expected tokens, the best shape, the best size.

A tree of guesses is worth 1 + the sum over its nodes of the probability that the target's path passes through
them (their *reach*). Reach falls along every path, so the n nodes of highest reach always form a tree, and no
other tree of n nodes is worth more. Reach may come from a drafter's own estimates (EAGLE-2, OPT-Tree) or from
acceptance by rank (Medusa, Sequoia).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart_lab.theory.formulas import FloatArray, RoundCost

IntArray = NDArray[np.int32]


def reach_of(parents: IntArray, conditionals: Sequence[float] | FloatArray) -> FloatArray:
    """[node] probability that the target's path passes through a node: the product along its path.

    Args:
        parents: [node] an earlier node, or -1 for the root.
        conditionals: [node] probability of the node's token, given that its parent was reached.
    """
    reach = np.array(conditionals, dtype=np.float64)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            reach[node] *= reach[parent]
    return reach


def expected_tokens_of_tree(reach: FloatArray) -> float:
    """Expected tokens per round with this tree, correction or bonus included."""
    return 1.0 + float(reach.sum())


@dataclass(frozen=True)
class RankedTree:
    """Nodes in the order of falling reach: the first n of them are the best tree of n nodes, for every n."""

    parents: IntArray
    """[node] an earlier node, or -1 for the root."""
    ranks: IntArray
    """[node] which guess after its parent it is, 0 the drafter's first."""
    depths: IntArray
    """[node] distance from the root, 1 for its children."""
    reach: FloatArray
    """[node] probability that the target's path passes through it."""


def best_first_tree(acceptances: FloatArray, nodes: int) -> RankedTree:
    """Grow the best tree when acceptance depends on depth and rank alone (Medusa's builder; Cai et al. 2024).

    Args:
        acceptances: [depth, rank] probability that the target's token is the guess of that rank, given that the
            path above it was reached. Deeper levels do not exist. Guesses that are *draws* must not be skipped,
            so their rows may not rise with rank; for deterministic guesses any table is right.
        nodes: how many nodes, fewer if the table holds fewer of positive reach.
    """
    # (-reach, depth, tie-breaker, parent, rank): among equals the shallower node, so that no node precedes its parent
    frontier: list[tuple[float, int, int, int, int]] = []
    pushed = 0

    def push_children(parent: int, reach: float, depth: int) -> None:
        nonlocal pushed
        if depth < len(acceptances):
            for rank, chance in enumerate(acceptances[depth].tolist()):
                if chance > 0:
                    heapq.heappush(frontier, (-reach * chance, depth + 1, pushed, parent, rank))
                    pushed += 1

    chosen: list[tuple[int, int, int, float]] = []
    push_children(-1, 1.0, 0)
    while frontier and len(chosen) < nodes:
        negative, depth, _, parent, rank = heapq.heappop(frontier)
        chosen.append((parent, rank, depth, -negative))
        push_children(len(chosen) - 1, -negative, depth)
    columns = list(zip(*chosen, strict=True)) or [(), (), (), ()]
    parents, ranks, depths = (np.array(column, dtype=np.int32) for column in columns[:3])
    return RankedTree(parents, ranks, depths, np.array(columns[3], dtype=np.float64))


@dataclass(frozen=True)
class SizedTree:
    """The choice of nodes that yields most tokens per time."""

    nodes: IntArray
    """Indices of the chosen nodes, ascending; closed under parents. Empty: plain decoding is best."""
    tokens: float
    """Expected tokens per round."""
    time: float
    """Cost of the round, in the unit of the ``RoundCost``."""

    @property
    def rate(self) -> float:
        """Expected tokens per unit of time."""
        return self.tokens / self.time


def best_size(reach: FloatArray, depths: IntArray, cost: RoundCost) -> SizedTree:
    """Choose the nodes that maximise (1 + sum of reach) / (draft(depth) + target(rows) + overhead).

    For a given depth and number of nodes the best choice is that of highest reach, so every depth limit and every
    number is tried, none included; only so is a staircase of costs searched to the end. Ties go to fewer nodes.

    Args:
        reach: [node] as ``reach_of`` gives it.
        depths: [node] distance from the root, 1 for its children.
    """
    order = np.lexsort((depths, -reach))
    best = SizedTree(np.zeros(0, dtype=np.int32), 1.0, cost.of(0, 0))
    for limit in range(1, int(depths.max(initial=0)) + 1):
        allowed = order[depths[order] <= limit]
        tokens = 1.0 + np.cumsum(reach[allowed])
        for size in range(1, len(allowed) + 1):
            time = cost.of(size, int(depths[allowed[:size]].max()))
            if tokens[size - 1] / time > best.rate:
                best = SizedTree(np.sort(allowed[:size]).astype(np.int32), float(tokens[size - 1]), time)
    return best


def sequoia_tokens(acceptances: Sequence[float] | FloatArray, nodes: int, depth: int) -> FloatArray:
    """[depth + 1, nodes + 1] expected tokens of the best tree of at most this many levels and nodes.

    Sequoia's dynamic program (Chen et al. 2024, section 3): the best tree with up to b children splits into the
    best with b - 1 and one subtree below the b-th child, accepted with ``acceptances[b]`` at every node.

    Args:
        acceptances: [rank] probability that the target's token is the guess of that rank.
        nodes: guesses, the root not counted.
        depth: levels, the root not counted.
    """
    best = np.ones((depth + 1, nodes + 1))
    for level in range(1, depth + 1):
        for chance in acceptances:
            with_child = best[level].copy()
            for total in range(1, nodes + 1):
                # n nodes: the child itself, `below` under it, the rest with the ranks before it
                below = np.arange(total)
                gains = best[level, total - 1 - below] + chance * best[level - 1, below]
                with_child[total] = max(with_child[total], gains.max())
            best[level] = with_child
    return best
