"""Medusa (Cai et al. 2024, arXiv:2401.10774): a sparse tree over the guesses of several heads, verified exactly.

The paper's tree is one for all rounds. Guesses are point masses here, so each round may have a tree of its own: the
paths whose guesses are likeliest together, as EAGLE-2 grows them, which brings more with as many nodes
(docs/experiments/training.md, 0042). The paper's typical acceptance changes what is said: it is an opt-in, for any
drafter (``verification.typical``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import ConfidenceOptions
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, TemplateTrees
from headstart.drafting.options import MOST, require
from headstart.drafting.tree_templates import path_template
from headstart_lab.methods.medusa.parallel_drafter import ParallelHeadsDrafter


@dataclass(frozen=True)
class MedusaOptions(ConfidenceOptions):
    width: int = 10
    """Best tokens of a head that are guessed, and nodes of a level that get children."""
    shape: tuple[tuple[int, ...], ...] = ()
    """One tree for all rounds, as paths of ranks, the likeliest first, each after its parent: [0], [1], [0, 0], ...;
    empty: in each round the likeliest paths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lists = (list, tuple)
        are_paths = isinstance(self.shape, lists) and all(isinstance(path, lists) for path in self.shape)
        require(are_paths, f"shape is {self.shape!r:.60}; give a list of paths, like [[0], [1], [0, 0]].")
        known: set[tuple[int, ...]] = {()}
        for path in map(tuple, self.shape):
            sensible = all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank <= MOST for rank in path)
            require(
                sensible and path not in known and path[:-1] in known,
                f"shape has {list(path)!r:.60}, which is no new path of ranks after its parent's.",
            )
            known.add(path)


class MedusaDrafter(ParallelHeadsDrafter):
    """Residual blocks on the target's last state."""

    Options = MedusaOptions
    grade_rates = CONFIDENCE_RATES

    def __init__(self, context: DraftContext, options: MedusaOptions) -> None:
        if options.shape:
            template = path_template([tuple(path) for path in options.shape])
            ranks = int(template.ranks.max()) + 1
            super().__init__(context, options, "medusa", ranks, lambda budgets: TemplateTrees(len(budgets), template))
            require(
                ranks <= self._ranks,
                f"shape has rank {ranks - 1}; the head says {self._ranks} tokens, ranks end at {self._ranks - 1}.",
            )
            depth = int(template.depths.max())
            require(depth <= self._slots, f"shape has a path of {depth} ranks; the head has {self._slots} slots.")
        else:
            kit = context.require_runner().backend.kit
            new_trees = partial(options.new_trees, kit=kit)
            super().__init__(context, options, "medusa", options.width, new_trees)
