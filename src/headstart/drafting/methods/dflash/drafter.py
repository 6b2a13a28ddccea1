"""DFlash (Chen et al. 2026, arXiv:2602.06036): a head that guesses a whole block in one pass.

The block's rows say one token each, whatever the others say. A head may also have learnt what one token says of the
next (DSpark's Markov factor, arXiv:2607.05147), which makes the products of their laws honest: its tree grows level by
level. And it may have learnt how likely its guesses are accepted (DSpark's confidence): a draft ends where the chain of
its best guesses is less likely than a path must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import open_head
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.drafting.head_trees.one_pass import OnePassDrafter, OnePassOptions
from headstart.drafting.head_trees.reading import Features, Reading
from headstart.drafting.head_trees.trees import Ids
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.dflash.head import KIND, BlockHead
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import DraftTree


@dataclass(frozen=True)
class DFlashOptions(OnePassOptions):
    confidence: bool = True
    """Let a head that has learnt how likely its guesses are accepted (DSpark) end drafts."""


class DFlashDrafter(OnePassDrafter):
    """One pass over the last token and masks."""

    Options = DFlashOptions
    _options: DFlashOptions

    def __init__(self, context: DraftContext, options: DFlashOptions) -> None:
        head = open_head(context, options.model, KIND, BlockHead)
        tables = context.require_tables()()
        self._pass = context.require_runner().backend.kit.block_pass(head, tables, options.precision)
        self._slots = self._pass.slots
        super().__init__(context, options, head, head.config.taps, self._pass, tables, options.text_vocabulary)
        self._growth = self._pass.growth(options.width, self._ids(), options.confidence)

    def _read_rows(self, rows: Sequence[tuple[IntArray, Features]], groups: Sequence[DraftRows]) -> None:
        self._pass.read(torch.from_numpy(np.concatenate([features for _, features in rows])), groups)

    def _say(self, drafted: Sequence[tuple[SequenceView, Reading]], slots: int) -> tuple[Tensor, Tensor]:
        self._read_rows(
            [reading.unread(sequence) for sequence, reading in drafted],
            [DraftRows(reading.cache, reading.num_unread) for _, reading in drafted],
        )
        roots = _roots([sequence for sequence, _ in drafted])
        return self._pass.block(roots, [reading.cache for _, reading in drafted], slots)

    def _deep_enough(
        self, sequences: Sequence[SequenceView], states: Tensor, logits: Tensor, budgets: Sequence[DraftBudget]
    ) -> Sequence[DraftBudget]:
        if not (self._pass.confident and self._options.confidence):
            return budgets
        least = self._options.min_probability_of(budgets, self._kit)
        before = torch.from_numpy(_roots(sequences)).long()
        reached, depths = torch.ones(len(sequences)), torch.zeros(len(sequences), dtype=torch.int64)
        for slot in range(logits.shape[1]):
            reached = reached * self._pass.confidence(states[:, slot], before).cpu()
            depths += reached >= least
            rows = logits[:, slot] + (self._pass.following(before) if self._pass.chained else 0.0)
            before = self._pass.target_ids[rows.argmax(-1).cpu()]
        return [
            replace(budget, depth=min(budget.depth, depth))
            for budget, depth in zip(budgets, depths.tolist(), strict=True)
        ]

    def _added(self, before: int) -> Tensor | None:
        return self._pass.following(torch.tensor([before]))[0].cpu() if self._pass.chained else None

    def _trees(
        self,
        sequences: Sequence[SequenceView],
        logits: Tensor,
        ranking: NoiseRanking,
        further: Ids,
        budgets: Sequence[DraftBudget],
    ) -> list[DraftTree]:
        """Where a guess depends on the one before it, paths are looked for level by level; nothing is added to the
        columns behind the draft vocabulary."""
        if not self._pass.chained:
            return super()._trees(sequences, logits, ranking, further, budgets)
        trees = self._options.new_trees(budgets, self._kit)
        before = torch.from_numpy(_roots(sequences)).long()[:, None]
        for slot in range(logits.shape[1]):
            added = self._pass.following(before.flatten()).view(*before.shape, -1)
            rows = logits[:, slot, None] + F.pad(added, (0, further.shape[1]))
            beams = trees.grow(*self._best(ranking.scores(rows, slot + 1), further))
            if beams is None:
                break
            before = torch.from_numpy(beams.tokens)
        return trees.trees(self._options.tree_nodes, budgets)


def _roots(sequences: Sequence[SequenceView]) -> IntArray:
    """int32 [sequence] the last committed tokens."""
    return np.array([sequence.tokens[-1] for sequence in sequences], dtype=np.int32)
