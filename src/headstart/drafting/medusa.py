"""Medusa (Cai et al. 2024, arXiv:2401.10774): a sparse tree over the guesses of several heads, verified exactly.

The paper's typical acceptance is left out: it changes what is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headstart.draft_tree import ROOT
from headstart.drafting.context import DraftContext
from headstart.drafting.heads import HeadOptions
from headstart.drafting.options import require
from headstart.drafting.parallel_heads import ParallelHeadsDrafter
from headstart.drafting.recycling import TreeTemplate

RANK_ACCEPTANCE = (
    (0.50, 0.13, 0.07, 0.04, 0.03, 0.02, 0.02, 0.01),
    (0.27, 0.10, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01),
    (0.18, 0.08, 0.05, 0.03, 0.03, 0.02, 0.02, 0.01),
    (0.13, 0.07, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01),
    (0.10, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01),
)
"""[head][rank] how often a head's guess of this rank is right: an assumption for small models, which fixes the default
tree alone."""
DEFAULT_NODES = 63


@dataclass(frozen=True)
class MedusaOptions(HeadOptions):
    shape: tuple[tuple[int, ...], ...] = ()
    """The tree as paths of ranks, the likeliest first, each after its parent: [0], [1], [0, 0], ...; empty: built from
    typical accuracies of heads and ranks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known: set[tuple[int, ...]] = {()}
        for path in map(tuple, self.shape):
            sensible = all(isinstance(rank, int) and rank >= 0 for rank in path)
            require(
                sensible and path not in known and path[:-1] in known,
                f"shape has {list(path)}, which is no new path of ranks behind its parent's.",
            )
            known.add(path)


class MedusaDrafter(ParallelHeadsDrafter):
    """Residual blocks on the target's last state."""

    Options = MedusaOptions

    def __init__(self, context: DraftContext, options: MedusaOptions) -> None:
        paths = [tuple(path) for path in options.shape] or greedy_paths(RANK_ACCEPTANCE, DEFAULT_NODES)
        super().__init__(context, options, "medusa", path_template(paths))


def greedy_paths(accuracy: tuple[tuple[float, ...], ...], nodes: int) -> list[tuple[int, ...]]:
    """The ``nodes`` paths of ranks that are right most often, if heads err independently (Medusa, section 2.3.3).

    ``accuracy``: [head][rank]. A path's parent, and its sibling of the rank before, come before it.
    """
    chosen: list[tuple[int, ...]] = []
    waiting: dict[tuple[int, ...], float] = {(0,): accuracy[0][0]}
    while waiting and len(chosen) < nodes:
        best = max(waiting, key=lambda path: (waiting[path], [-rank for rank in path]))
        value = waiting.pop(best)
        chosen.append(best)
        head, rank = len(best) - 1, best[-1]
        if rank + 1 < len(accuracy[head]):
            waiting[(*best[:-1], rank + 1)] = value / accuracy[head][rank] * accuracy[head][rank + 1]
        if head + 1 < len(accuracy):
            waiting[(*best, 0)] = value * accuracy[head + 1][0]
    return chosen


def path_template(paths: list[tuple[int, ...]]) -> TreeTemplate:
    """A static tree from paths of ranks in the order of their worth."""
    nodes = {path: node for node, path in enumerate(paths)}
    return TreeTemplate(
        parents=np.array([nodes.get(path[:-1], ROOT) for path in paths]),
        ranks=np.array([path[-1] for path in paths]),
        depths=np.array([len(path) for path in paths]),
    )
