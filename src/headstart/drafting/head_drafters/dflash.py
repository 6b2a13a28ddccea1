"""DFlash (Chen et al. 2026, arXiv:2602.06036): a head that guesses a whole block in one pass.

The block's rows say one token each, whatever the others say: a law for each depth. The paper drafts the chain of best
tokens; a tree of the likeliest paths by the product of these laws (DDTree, arXiv:2604.12989) needs no other training
and no other pass. A head may also have learnt what one token says of the next (DSpark's Markov factor,
arXiv:2607.05147), which makes the products honest: its tree grows level by level. Guesses are point masses; those of
sampled requests are ranked by the target's own noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.context import DraftContext
from headstart.drafting.head_drafters.head_source import open_head
from headstart.drafting.head_drafters.head_trees import CONFIDENCE_RATES, Ids, path_bounds, pruned_trees
from headstart.drafting.head_drafters.marginal_trees import likeliest_paths
from headstart.drafting.head_drafters.noise_ranking import NoiseRanking
from headstart.drafting.head_drafters.read_along import ReadingDrafter, SpeakingOptions
from headstart.drafting.head_drafters.reading import Features, Reading
from headstart.heads.block import KIND, MOST_SLOTS, BlockHead
from headstart.heads.head_pass import DraftRows
from headstart.passes import IntArray


@dataclass(frozen=True)
class DFlashOptions(SpeakingOptions):
    draft_tokens: int = MOST_SLOTS
    """Depth of a draft at most; a block is as deep as its head was trained to guess."""
    width: int = 8
    """Best tokens of each depth that may be guessed; 1: the chain of the best ones."""


class DFlashDrafter(ReadingDrafter):
    """One pass over the last token and masks, then the likeliest paths."""

    Options = DFlashOptions
    grade_rates = CONFIDENCE_RATES
    _options: DFlashOptions

    def __init__(self, context: DraftContext, options: DFlashOptions) -> None:
        head = open_head(context, options.model, KIND, BlockHead)
        tables = context.require_tables()()
        self._pass = context.require_runner().backend.kit.block_pass(head, tables, options.precision)
        super().__init__(context, options, head, head.config.taps, self._pass, tables, options.text_vocabulary)

    @property
    def ranks(self) -> int:
        return self._options.width

    def _read_rows(self, rows: Sequence[tuple[IntArray, Features]], groups: Sequence[DraftRows]) -> None:
        self._pass.read(torch.from_numpy(np.concatenate([features for _, features in rows])), groups)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        self._read_rows(
            [reading.unread(sequence) for sequence, reading in drafted],
            [DraftRows(reading.cache, reading.num_unread) for _, reading in drafted],
        )
        sequences, allowed = [sequence for sequence, _ in drafted], budgets
        budgets = wide_budgets(sequences, budgets)
        slots = min(self._options.draft_tokens, self._pass.slots, max(budget.depth for budget in budgets))
        roots = np.array([sequence.tokens[-1] for sequence in sequences], dtype=np.int32)
        states, logits = self._pass.block(roots, [reading.cache for _, reading in drafted], slots)
        further = self._further_ids(drafted)
        logits = self._with_text_tokens(states.flatten(0, 1), logits.flatten(0, 1), drafted, further.shape[1])
        ranking = self._noise_ranking(drafted, further)
        if self._pass.chained:
            return self._grow_chained(roots, logits, ranking, further, allowed)
        if ranking.sampled:
            logits = torch.cat([ranking.scores(logits[:, slot, None], slot + 1) for slot in range(slots)], dim=1)
        log_probs, tokens = self._best(logits, further)
        bounds = path_bounds(self._options.min_probability_of(budgets, self._kit))
        grown = [
            likeliest_paths(
                log_probs[place, : budget.depth],
                tokens[place, : budget.depth],
                budget.nodes if beam_of(sequence) is not None else min(self._options.tree_nodes, budget.nodes),
                bounds.min_log_prob,
            )
            for place, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True))
        ]
        return pruned_trees(grown, sequences, allowed)

    def _grow_chained(
        self, roots: IntArray, logits: Tensor, ranking: NoiseRanking, further: Ids, budgets: Sequence[DraftBudget]
    ) -> list[DraftTree]:
        """Where a guess depends on the one before it, paths are looked for level by level.

        Args:
            roots: int32 [sequence].
            logits: [sequence, slot, column] whatever stands before.
            further: ids of the columns behind the draft vocabulary, to which nothing is added.
        """
        trees = self._options.new_trees(budgets, self._kit)
        before = torch.from_numpy(roots).long()[:, None]
        for slot in range(logits.shape[1]):
            added = self._pass.following(before.flatten()).view(*before.shape, -1)
            rows = logits[:, slot, None] + F.pad(added, (0, further.shape[1]))
            beams = trees.grow(*self._best(ranking.scores(rows, slot + 1), further))
            if beams is None:
                break
            before = torch.from_numpy(beams.tokens)
        return trees.trees(self._options.tree_nodes, budgets)
