"""DFlash (Chen et al. 2026, arXiv:2602.06036): a head that guesses a whole block in one pass.

The block's rows say one token each, whatever the others say; or what one token says of the next is added (DSpark's
Markov factor, arXiv:2607.05147; DFlash 2's selector of paths). A head may have learnt how likely its guesses are
accepted (DSpark's confidence): a draft ends where the chain of its best guesses is less likely than a path must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.draft_vocabulary import Drafted, DraftVocabulary
from headstart.drafting.head_trees.growing import CalledGrowth
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.drafting.head_trees.head_source import open_head, run_head
from headstart.drafting.head_trees.one_pass import OnePassGrowth, OnePassOptions
from headstart.drafting.head_trees.read_along import Reader, unread_rows
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES
from headstart.drafting.heads.head_pass import BlockHeadPass, DraftRows
from headstart.drafting.methods.dflash import PASSES
from headstart.drafting.methods.dflash.head import KIND, BlockHead
from headstart.passes.backend import BackendKit
from headstart.passes.batch import IntArray


@dataclass(frozen=True)
class DFlashOptions(OnePassOptions):
    confidence: bool = True
    """Let a head that has learnt how likely its guesses are accepted (DSpark) end drafts."""


class DFlashDrafter(HeadDrafter):
    """One pass over the last token and masks."""

    Options = DFlashOptions
    grade_rates = CONFIDENCE_RATES

    def __init__(self, context: DraftContext, options: DFlashOptions) -> None:
        head = open_head(context, options.model, KIND, BlockHead)
        tables, kit = context.require_tables()(), context.require_runner().backend.kit
        running = run_head(context, PASSES, head, tables, options.precision)
        vocabulary = DraftVocabulary.of(running, context.vocab_size, tables, head, options.text_vocabulary)
        blocks = Blocks(running, options, kit)
        window = options.window_of(head, head.config.reach)
        reader = Reader(context, head.config.taps, running, blocks.read, vocabulary, window=window)
        called = running.growth(options.width, vocabulary.ids, options.confidence)
        growth = OnePassGrowth(
            blocks.say,
            running.slots,
            vocabulary,
            options,
            kit,
            None if called is None else CalledGrowth(called, reader, options, kit),
            following=running.following if running.chained else None,
            shorten=blocks.shorten if running.confident and options.confidence else None,
        )
        super().__init__(reader, growth)


class Blocks:
    """What a head says in one pass."""

    def __init__(self, running: BlockHeadPass, options: DFlashOptions, kit: BackendKit) -> None:
        self._pass = running
        self._options = options
        self._kit = kit

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> None:
        """See ``ReadRows``; states stand alone."""
        self._pass.read(features, groups)

    def say(self, drafted: Drafted, slots: int) -> tuple[Tensor, Tensor]:
        """See ``one_pass.Say``."""
        self.read(*unread_rows(drafted))
        roots = _roots([sequence for sequence, _ in drafted])
        return self._pass.block(roots, [reading.cache for _, reading in drafted], slots)

    def shorten(
        self, sequences: Sequence[SequenceView], states: Tensor, logits: Tensor, budgets: Sequence[DraftBudget]
    ) -> Sequence[DraftBudget]:
        """See ``one_pass.Shorten``."""
        least = self._options.min_probability_of(budgets, self._kit)
        before = torch.from_numpy(_roots(sequences)).long()
        reached, depths = torch.ones(len(sequences)), torch.zeros(len(sequences), dtype=torch.int64)
        for slot in range(logits.shape[1]):
            reached = reached * self._pass.confidence(states[:, slot], before).cpu()
            depths += reached >= least
            added = self._pass.following(before, states[:, slot]) if self._pass.chained else 0.0
            rows = logits[:, slot] + added
            before = self._pass.target_ids[rows.argmax(-1).cpu()]
        return [
            replace(budget, depth=min(budget.depth, depth))
            for budget, depth in zip(budgets, depths.tolist(), strict=True)
        ]


def _roots(sequences: Sequence[SequenceView]) -> IntArray:
    """int32 [sequence] the last committed tokens."""
    return np.array([sequence.tokens[-1] for sequence in sequences], dtype=np.int32)
