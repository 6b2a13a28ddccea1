"""EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858) and EAGLE-3 (arXiv:2503.01840)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.growing import GrowingDrafter
from headstart.drafting.head_trees.head_source import HeadOptions, open_head
from headstart.drafting.head_trees.read_along import SpeakingOptions
from headstart.drafting.head_trees.reading import Reading
from headstart.drafting.head_trees.stepping import SteppingDrafter
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, HeadTrees, TemplateTrees
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, EagleHead
from headstart.drafting.tree_templates import rank_tree
from headstart.passes.draft_tree import DraftTree

STATIC_LEVELS = (4, 8, 7, 4, 2)
"""Nodes on each level of EAGLE-1's static tree of 25."""
RANK_PROBABILITIES = (0.55, 0.14, 0.07, 0.04)
"""How often the next token is the head's first, second, ... guess; only their order of products matters."""


@dataclass(frozen=True)
class EagleOptions(HeadOptions):
    pass


@dataclass(frozen=True)
class DynamicEagleOptions(SpeakingOptions):
    draft_tokens: int = 8
    """Depth of a draft at most: where the head is sure, levels cost little, and unsure paths end by themselves."""


class HeadDrafter(SteppingDrafter):
    """Runs an EAGLE head."""

    variant: str
    others: tuple[str, ...] = ()
    """Heads that can be stepped as well."""

    def __init__(self, context: DraftContext, options: HeadOptions, most_text_tokens: int = 0) -> None:
        head = open_head(context, options.model, self.variant, EagleHead, self.others)
        tables = context.require_tables()()
        self._pass = context.require_runner().backend.kit.head_pass(head, tables, options.precision)
        super().__init__(context, options, head, head.config.taps, self._pass, tables, most_text_tokens)
        self._eps = None if head.config.norm_output else head.config.norm_eps


class EagleDrafter(HeadDrafter):
    """EAGLE-1: the head's first guesses in a static tree."""

    Options = EagleOptions
    variant = "eagle"
    ranks = len(RANK_PROBABILITIES)

    def __init__(self, context: DraftContext, options: EagleOptions) -> None:
        super().__init__(context, options)
        self._template = rank_tree(STATIC_LEVELS, RANK_PROBABILITIES)

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return TemplateTrees(len(budgets), self._template)


class Eagle2Drafter(HeadDrafter, GrowingDrafter):
    """EAGLE-2: EAGLE-1's head in a tree that grows where the head is confident."""

    Options = DynamicEagleOptions
    variant = "eagle"
    grade_rates = CONFIDENCE_RATES
    _options: DynamicEagleOptions

    def __init__(self, context: DraftContext, options: DynamicEagleOptions) -> None:
        super().__init__(context, options, options.text_vocabulary)
        self._growth = self._pass.growth(options.width, self._ids())

    @property
    def ranks(self) -> int:
        return self._options.width

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return self._options.new_trees(budgets, self._kit)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._growth is None:
            return super()._grow(drafted, budgets)
        return self._grown(self._growth, drafted, budgets)


class Eagle3Drafter(Eagle2Drafter):
    """EAGLE-3: features of several layers, a vocabulary of its own, EAGLE-2's tree.

    A P-EAGLE head is stepped without its masks, which pays if it has learnt steps, too (``train p-eagle --unroll``)."""

    variant = "eagle3"
    others = (PARALLEL_KIND,)
