"""Blockwise parallel decoding (Stern et al. 2018, arXiv:1811.03115): one chain from heads trained together."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import HeadOptions
from headstart.drafting.head_trees.trees import TemplateTrees
from headstart.drafting.tree_templates import path_template
from headstart_lab.methods.medusa.parallel_drafter import ParallelHeadsDrafter

MAX_SLOTS = 64


@dataclass(frozen=True)
class BlockwiseOptions(HeadOptions):
    pass


class BlockwiseDrafter(ParallelHeadsDrafter):
    """Each slot's best token, as the paper's greedy predict step."""

    Options = BlockwiseOptions

    def __init__(self, context: DraftContext, options: BlockwiseOptions) -> None:
        chain = path_template([(0,) * (depth + 1) for depth in range(MAX_SLOTS)])
        super().__init__(context, options, "blockwise", 1, lambda budgets: TemplateTrees(len(budgets), chain))
