"""Trees of the likeliest paths of a head, cut to what may be verified."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.heads.head_pass import GrownTree
from headstart.passes.draft_tree import ROOT

IMPOSSIBLE = np.float32(-1e30)
"""The score of a path that must not be kept."""


def cut_tree(
    tokens: NDArray[np.integer[Any]],
    parents: NDArray[np.integer[Any]],
    scores: NDArray[np.float32],
    depths: NDArray[np.int64],
    nodes: int,
    depth: int,
) -> GrownTree:
    """The ``nodes`` best of a tree's nodes down to ``depth``. At equal scores the shallower one is better, so a node's
    parent always comes with it.

    Args:
        tokens: [node] target ids.
        parents: [node].
        scores: [node] log-probabilities of paths.
        depths: [node], 1 below the root.
    """
    order = np.lexsort((np.arange(len(tokens)), depths, -scores))
    order = order[(depths[order] <= depth) & (scores[order] > IMPOSSIBLE / 2)]
    kept = np.sort(order[:nodes])
    place = np.full(len(tokens) + 1, ROOT, dtype=np.int32)
    place[kept] = np.arange(len(kept))
    return GrownTree(tokens[kept].astype(np.int32), place[parents[kept]], scores[kept])
