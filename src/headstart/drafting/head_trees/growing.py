"""Trees whose whole drafts a head's pass makes in one call: round by round, or in a stretch of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.head_trees.draft_vocabulary import Drafted
from headstart.drafting.head_trees.head_drafter import TreeGrowth
from headstart.drafting.head_trees.head_source import ConfidenceOptions
from headstart.drafting.head_trees.read_along import Reader
from headstart.drafting.head_trees.trees import LOG_CONFIDENCE, pruned_trees
from headstart.drafting.heads.head_pass import DraftRoot, Growth, StretchGrowth
from headstart.passes.backend import BackendKit
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import Guesser, StretchDrafting, StretchLimits


class CalledGrowth(TreeGrowth):
    """Trees of one call.

    Args:
        growth: what makes them.
        kit: the target's.
    """

    def __init__(self, growth: Growth, reader: Reader, options: ConfidenceOptions, kit: BackendKit) -> None:
        self.called = growth
        self._reader = reader
        self._options = options
        self._kit = kit

    def grow(self, drafted: Drafted, budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """Drafts of one round."""
        sequences, allowed = [sequence for sequence, _ in drafted], budgets
        budgets = wide_budgets(sequences, budgets)
        roots = self._roots(drafted, budgets)
        vocabulary = self._reader.vocabulary
        ranking = vocabulary.ranking(drafted, vocabulary.further_ids(drafted))
        bounds = self._options.bounds_of(budgets, self._kit)
        grown = self.called.grow(roots, bounds, ranking.of if ranking.sampled else None)
        return pruned_trees(grown, sequences, allowed)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        reader, growth = self._reader, self.called
        if not isinstance(growth, StretchGrowth) or not all([reader.is_ready(sequence) for sequence in sequences]):
            return None
        asked = [place for place, each in enumerate(limits) if each.guesses]
        guessers = dict(zip(asked, self._growers(growth, sequences, limits, asked), strict=True)) if asked else {}
        for place, sequence in enumerate(sequences):
            if place not in guessers:
                recorder = growth.recorder(reader.readings[sequence.id].known, limits[place].rows)
                guessers[place] = Guesser(recorder, partial(reader.record, sequence, recorder), reader.taps)
        return StretchDrafting([(guessers[place],) for place in range(len(sequences))])

    def _growers(
        self,
        growth: StretchGrowth,
        sequences: Sequence[SequenceView],
        limits: Sequence[StretchLimits],
        asked: Sequence[int],
    ) -> list[Guesser]:
        """What guesses for some of the sequences."""
        drafted = self._reader.prepared([sequences[place] for place in asked])
        budgets = [limits[place].budget for place in asked]
        growers = growth.growers(
            self._roots(drafted, budgets),
            self._options.bounds_of(budgets, self._kit),
            LOG_CONFIDENCE,
            [limits[place].rows for place in asked],
        )
        return [
            Guesser(grower, partial(self._reader.go_on, sequence, grower), self._reader.taps)
            for (sequence, _), grower in zip(drafted, growers, strict=True)
        ]

    def _roots(self, drafted: Drafted, budgets: Sequence[DraftBudget]) -> list[DraftRoot]:
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
