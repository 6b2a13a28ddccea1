"""EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858) and EAGLE-3 (arXiv:2503.01840)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.context import DraftContext
from headstart.drafting.head_drafters.head_source import HeadOptions, open_head
from headstart.drafting.head_drafters.head_trees import (
    CONFIDENCE_RATES,
    LOG_CONFIDENCE,
    HeadTrees,
    TemplateTrees,
    path_bounds,
    pruned_trees,
)
from headstart.drafting.head_drafters.read_along import EAGER_ROWS, SpeakingOptions
from headstart.drafting.head_drafters.reading import Reading
from headstart.drafting.head_drafters.stepping import SteppingDrafter
from headstart.drafting.tree_templates import rank_tree
from headstart.heads.eagle import EagleHead
from headstart.heads.head_pass import DraftRoot, HeadGrower
from headstart.stretch import Guesser, StretchDrafting, StretchLimits

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

    def __init__(self, context: DraftContext, options: HeadOptions, most_text_tokens: int = 0) -> None:
        head = open_head(context, options.model, self.variant, EagleHead)
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


class Eagle2Drafter(HeadDrafter):
    """EAGLE-2: EAGLE-1's head in a tree that grows where the head is confident."""

    Options = DynamicEagleOptions
    variant = "eagle"
    grade_rates = CONFIDENCE_RATES
    _options: DynamicEagleOptions

    def __init__(self, context: DraftContext, options: DynamicEagleOptions) -> None:
        super().__init__(context, options, options.text_vocabulary)
        ids = np.where(self._target_ids < self._vocab_size, self._target_ids, -1)
        self._growth = self._pass.growth(options.width, ids)

    @property
    def ranks(self) -> int:
        return self._options.width

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return self._options.new_trees(budgets, self._kit)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._growth is None:
            return super()._grow(drafted, budgets)
        sequences, allowed = [sequence for sequence, _ in drafted], budgets
        budgets = wide_budgets(sequences, budgets)
        roots = self._roots(drafted, budgets)
        ranking = self._noise_ranking(drafted, self._further_ids(drafted))
        bounds = path_bounds(self._options.min_probability_of(budgets, self._kit))
        grown = self._growth.grow(roots, bounds, ranking.of if ranking.sampled else None)
        return pruned_trees(grown, sequences, allowed)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        if self._growth is None or not all([self._is_ready(sequence) for sequence in sequences]):
            return None
        drafted = [(sequence, self._readings[sequence.id]) for sequence in sequences]
        self._prepare(drafted)
        budgets = [each.budget for each in limits]
        growers = self._growth.growers(
            self._roots(drafted, budgets),
            path_bounds(self._options.min_probability_of(budgets, self._kit)),
            LOG_CONFIDENCE,
            [each.rows for each in limits],
            [each.guesses for each in limits],
        )
        return StretchDrafting(
            [
                (Guesser(grower, partial(self._finish, sequence, reading, grower), self._taps),)
                for (sequence, reading), grower in zip(drafted, growers, strict=True)
            ]
        )

    def _roots(
        self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]
    ) -> list[DraftRoot]:
        """Where drafts begin, and how far they may grow."""
        options = self._options
        return [
            DraftRoot(
                reading.cache,
                *reading.unread(sequence),
                budget.nodes if beam_of(sequence) is not None else min(options.tree_nodes, budget.nodes),
                min(options.draft_tokens, budget.depth),
                reading.text_tokens,
            )
            for (sequence, reading), budget in zip(drafted, budgets, strict=True)
        ]

    def _finish(self, sequence: SequenceView, reading: Reading, grower: HeadGrower) -> None:
        """A stretch is over, which may have gone further than the sequence."""
        before = reading.end
        reading.go_on(len(sequence.tokens) - 1, grower)
        if reading.num_unread >= EAGER_ROWS or self._prefixes.wants(reading, before):
            self._keep([(sequence, reading)])


class Eagle3Drafter(Eagle2Drafter):
    """EAGLE-3: features of several layers, a vocabulary of its own, EAGLE-2's tree."""

    variant = "eagle3"
