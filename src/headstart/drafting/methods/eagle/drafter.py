"""EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858) and EAGLE-3 (arXiv:2503.01840)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.draft_vocabulary import DraftVocabulary
from headstart.drafting.head_trees.growing import CalledGrowth
from headstart.drafting.head_trees.head_drafter import HeadDrafter, TreeGrowth
from headstart.drafting.head_trees.head_source import ReadingOptions, SpeakingOptions, open_head, run_head
from headstart.drafting.head_trees.read_along import Reader
from headstart.drafting.head_trees.stepping import SteppedGrowth
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, TemplateTrees
from headstart.drafting.heads.head_pass import HeadPass
from headstart.drafting.methods.eagle import PASSES
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, EagleHead
from headstart.drafting.tree_templates import rank_tree

STATIC_LEVELS = (4, 8, 7, 4, 2)
"""Nodes on each level of EAGLE-1's static tree of 25."""
RANK_PROBABILITIES = (0.55, 0.14, 0.07, 0.04)
"""How often the next token is the head's first, second, ... guess; only their order of products matters."""


@dataclass(frozen=True)
class EagleOptions(ReadingOptions):
    pass


@dataclass(frozen=True)
class DynamicEagleOptions(SpeakingOptions):
    draft_tokens: int = 8
    """Depth of a draft at most: where the head is sure, levels cost little, and unsure paths end by themselves."""


def _opened(
    context: DraftContext, options: ReadingOptions, kinds: tuple[str, ...], most_text_tokens: int = 0
) -> tuple[HeadPass, Reader]:
    """A head of the first of these kinds, or one that can be run like it: its pass, and how it reads."""
    head = open_head(context, options.model, kinds[0], EagleHead, kinds[1:])
    tables = context.require_tables()()
    running = run_head(context, PASSES, head, tables, options.precision)
    vocabulary = DraftVocabulary.of(
        running, context.vocab_size, tables, head, most_text_tokens, head.config.eps_of_said
    )
    window = options.window_of(head, head.config.reach)
    return running, Reader(context, head.config.taps, running, running.read, vocabulary, window=window)


class EagleDrafter(HeadDrafter):
    """EAGLE-1: the head's first guesses in a static tree."""

    Options = EagleOptions

    def __init__(self, context: DraftContext, options: EagleOptions) -> None:
        running, reader = _opened(context, options, ("eagle",))
        template = rank_tree(STATIC_LEVELS, RANK_PROBABILITIES)
        ranks = len(RANK_PROBABILITIES)
        super().__init__(
            reader,
            SteppedGrowth(
                running, reader.vocabulary, options, lambda budgets: TemplateTrees(len(budgets), template), ranks
            ),
        )


class Eagle2Drafter(HeadDrafter):
    """EAGLE-2: EAGLE-1's head in a tree that grows where the head is confident."""

    Options = DynamicEagleOptions
    grade_rates = CONFIDENCE_RATES
    kinds: tuple[str, ...] = ("eagle",)
    """Of heads that it runs."""

    def __init__(self, context: DraftContext, options: DynamicEagleOptions) -> None:
        running, reader = _opened(context, options, self.kinds, options.text_vocabulary)
        kit = context.require_runner().backend.kit
        called = running.growth(options.width, reader.vocabulary.ids)
        growth: TreeGrowth
        if called is None:
            new_trees = partial(options.new_trees, kit=kit)
            growth = SteppedGrowth(running, reader.vocabulary, options, new_trees, options.width)
        else:
            growth = CalledGrowth(called, reader, options, kit)
        super().__init__(reader, growth)


class Eagle3Drafter(Eagle2Drafter):
    """EAGLE-3: features of several layers, a vocabulary of its own, EAGLE-2's tree.

    A P-EAGLE head is stepped without its masks, which pays if it has learnt steps, too (``train p-eagle --unroll``)."""

    kinds = ("eagle3", PARALLEL_KIND)
