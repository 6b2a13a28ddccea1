"""Drafters whose whole drafts their head's pass may make: round by round, or in a stretch of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.head_trees.read_along import EAGER_ROWS, ReadingDrafter, SpeakingOptions
from headstart.drafting.head_trees.reading import Reading
from headstart.drafting.head_trees.trees import LOG_CONFIDENCE, path_bounds, pruned_trees
from headstart.drafting.heads.head_pass import DraftRoot, Growth, HeadGrower, StretchGrowth
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import Guesser, StretchDrafting, StretchLimits


class GrowingDrafter(ReadingDrafter):
    """Sub-classes say what their head is, and how drafts are made where its pass does not."""

    _options: SpeakingOptions
    _growth: Growth | None

    def _ids(self) -> IntArray:
        """int32 [draft vocab] target id of each draft id, -1 where the target has none."""
        return np.where(self._target_ids < self._vocab_size, self._target_ids, -1).astype(np.int32)

    def _grown(
        self, growth: Growth, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]
    ) -> list[DraftTree]:
        """Drafts of one round."""
        sequences, allowed = [sequence for sequence, _ in drafted], budgets
        budgets = wide_budgets(sequences, budgets)
        roots = self._roots(drafted, budgets)
        ranking = self._noise_ranking(drafted, self._further_ids(drafted))
        bounds = path_bounds(self._options.min_probability_of(budgets, self._kit))
        grown = growth.grow(roots, bounds, ranking.of if ranking.sampled else None)
        return pruned_trees(grown, sequences, allowed)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        if not isinstance(self._growth, StretchGrowth) or not all([self._is_ready(sequence) for sequence in sequences]):
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
