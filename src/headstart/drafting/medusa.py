"""Medusa (Cai et al. 2024, arXiv:2401.10774): a sparse tree over the guesses of several heads, verified exactly.

The paper's typical acceptance changes what is said: it is an opt-in, for any drafter (``verification.typical``).
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.drafting.context import DraftContext
from headstart.drafting.heads import HeadOptions
from headstart.drafting.options import require
from headstart.drafting.parallel_heads import ParallelHeadsDrafter
from headstart.drafting.tree_templates import greedy_paths, path_template

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
