"""EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858) and EAGLE-3 (arXiv:2503.01840).

The head's row i reads what the target saw at position i and the token after it. Rows of committed tokens are made
from the target's true states, which every pass brings; a draft goes on from the head's own. The rows of a draft are
forgotten after it, so drafting always continues from what the target saw.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

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
from headstart.drafting.head_drafters.read_along import EAGER_ROWS, ReadingDrafter, SpeakingOptions
from headstart.drafting.head_drafters.reading import Features, Reading
from headstart.drafting.tree_templates import rank_tree
from headstart.heads.eagle import EagleHead
from headstart.heads.head_pass import DraftRoot, DraftRows, HeadGrower
from headstart.passes import IntArray
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


class HeadDrafter(ReadingDrafter):
    """Runs an EAGLE head; sub-classes choose the shape of its trees."""

    variant: str

    def __init__(self, context: DraftContext, options: HeadOptions, most_text_tokens: int = 0) -> None:
        head = open_head(context, options.model, self.variant, EagleHead)
        tables = context.require_tables()()
        self._pass = context.require_runner().backend.kit.head_pass(head, tables, options.precision)
        super().__init__(context, options, head, head.config.taps, self._pass, tables, most_text_tokens)
        self._eps = None if head.config.norm_output else head.config.norm_eps

    @abstractmethod
    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        """Empty trees, one for each budget."""

    def _read_rows(
        self, rows: Sequence[tuple[IntArray, Features]], groups: Sequence[DraftRows]
    ) -> tuple[Tensor, Tensor]:
        tokens, features = (np.concatenate(column) for column in zip(*rows, strict=True))
        return self._pass.read(tokens, torch.from_numpy(features), groups)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """What was not read yet, then one step a level, over the beams of all sequences."""
        count = len(drafted)
        caches = [reading.cache for _, reading in drafted]
        states, logits = self._read_rows(
            [reading.unread(sequence) for sequence, reading in drafted],
            [DraftRows(reading.cache, reading.num_unread) for _, reading in drafted],
        )
        true_rows = [cache.rows for cache in caches]
        further = self._further_ids(drafted)
        ranking = self._noise_ranking(drafted, further)
        trees = self.new_trees(budgets)
        depth = min(self._options.draft_tokens, max(budget.depth for budget in budgets))
        paths = np.zeros((count, 1, 0), dtype=np.int32)
        for level in range(1, depth + 1):
            logits = self._with_text_tokens(states, logits, drafted, further.shape[1], self._eps)
            beams = trees.grow(*self._best(ranking.scores(logits, level), further))
            if level == depth or beams is None:
                break
            width, before = beams.tokens.shape[1], len(states) // count
            # A beam reads the state of the row that guessed it, and sees what that row saw, that row, and itself.
            rows = beams.parents + before * np.arange(count)[:, None]
            held = caches[0].rows - true_rows[0]
            own = np.broadcast_to(np.arange(held, held + width, dtype=np.int32)[:, None], (count, width, 1))
            paths = np.concatenate((np.take_along_axis(paths, beams.parents[:, :, None], axis=1), own), axis=2)
            states, logits = self._pass.step(
                beams.tokens.ravel().astype(np.int32),
                states[torch.from_numpy(rows.ravel()).to(states.device)],
                [DraftRows(cache, width, paths[i]) for i, cache in enumerate(caches)],
            )
        for cache, count_true in zip(caches, true_rows, strict=True):
            cache.truncate(count_true)
        return trees.trees(self._options.tree_nodes, budgets)


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
