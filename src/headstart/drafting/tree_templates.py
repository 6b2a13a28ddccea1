"""Static trees whose nodes are ranks: which of its parent's likeliest tokens a node stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.passes.draft_tree import ROOT


@dataclass(frozen=True)
class TreeTemplate:
    """A static tree whose nodes are ranks, the likeliest first, so that each prefix is the best tree of its size."""

    parents: NDArray[np.int64]
    """[node]"""
    ranks: NDArray[np.int64]
    """[node] which of the parent's next tokens."""
    depths: NDArray[np.int64]
    """[node]"""

    def __len__(self) -> int:
        return len(self.parents)


def rank_tree(level_sizes: Sequence[int], rank_probabilities: Sequence[float]) -> TreeTemplate:
    """The likeliest paths of ranks, ``level_sizes[i]`` of them at depth i + 1, by the product along the path."""
    level: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    paths: list[tuple[float, tuple[int, ...]]] = []
    for size in level_sizes:
        children = [
            (probability * share, (*path, rank))
            for probability, path in level
            for rank, share in enumerate(rank_probabilities)
        ]
        level = sorted(children, key=lambda child: (-child[0], child[1]))[:size]
        paths += level
    paths.sort(key=lambda child: (-child[0], len(child[1]), child[1]))
    return path_template([path for _, path in paths])


def path_template(paths: list[tuple[int, ...]]) -> TreeTemplate:
    """A static tree from paths of ranks in the order of their worth."""
    nodes = {path: node for node, path in enumerate(paths)}
    return TreeTemplate(
        parents=np.array([nodes.get(path[:-1], ROOT) for path in paths]),
        ranks=np.array([path[-1] for path in paths]),
        depths=np.array([len(path) for path in paths]),
    )
