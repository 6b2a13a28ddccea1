"""The likeliest paths where each depth has one law, whatever stands above it (DDTree, arXiv:2604.12989)."""

from __future__ import annotations

import heapq

import numpy as np

from headstart.drafting.head_trees.trees import Ids, Scores
from headstart.drafting.heads.head_pass import GrownTree
from headstart.passes.draft_tree import ROOT


def likeliest_paths(log_probs: Scores, tokens: Ids, nodes: int, min_log_prob: float) -> GrownTree:
    """The best ``nodes`` paths by the product of their tokens' probabilities, as one tree.

    A path's product falls with every token and every rank, so the best path that is not in the tree yet is the next
    sibling or the first child of one that is: each node costs one look into a heap.

    Args:
        log_probs: [slot, rank] of the tokens of each depth, the likeliest first; -inf: cannot be.
        tokens: [slot, rank] their ids.
        nodes: of the tree at most.
        min_log_prob: of a path that is taken.
    """
    # Rounding must not lift a token above certainty, nor something that is not a number break the order.
    steps = np.where(log_probs > -np.inf, np.minimum(log_probs, 0.0), -np.inf).tolist()
    slots, ranks = log_probs.shape
    chosen: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    heap: list[tuple[float, int, int, int]] = []
    """Negative score, slot, parent, rank."""

    def offer(above: float, slot: int, parent: int, rank: int) -> None:
        while slot < slots and rank < ranks and steps[slot][rank] == -np.inf:
            rank += 1
        if slot < slots and rank < ranks:
            score = above + steps[slot][rank]
            if score >= min_log_prob:
                heapq.heappush(heap, (-score, slot, parent, rank))

    offer(0.0, 0, ROOT, 0)
    while heap and len(chosen) < nodes:
        negative, slot, parent, rank = heapq.heappop(heap)
        node = len(chosen)
        chosen.append(int(tokens[slot, rank]))
        parents.append(parent)
        scores.append(-negative)
        offer(0.0 if parent == ROOT else scores[parent], slot, parent, rank + 1)
        offer(-negative, slot + 1, node, 0)
    return GrownTree(
        np.array(chosen, dtype=np.int32), np.array(parents, dtype=np.int32), np.array(scores, dtype=np.float32)
    )
