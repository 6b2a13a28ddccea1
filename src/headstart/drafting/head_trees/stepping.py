"""Drafters whose head grows a tree step by step: a step for each level, over the beams of all sequences.

The head's row i reads what the target saw at position i and the token after it. Rows of committed tokens are made
from the target's true states, which every pass brings; a draft goes on from the head's own. The rows of a draft are
forgotten after it, so drafting always continues from what the target saw.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.head_trees.read_along import ReadingDrafter
from headstart.drafting.head_trees.reading import Features, Reading
from headstart.drafting.head_trees.trees import HeadTrees
from headstart.drafting.heads.head_pass import DraftRows, HeadPass
from headstart.passes.batch import IntArray
from headstart.passes.draft_tree import DraftTree


class SteppingDrafter(ReadingDrafter):
    """Runs a head; sub-classes say which, and choose the shape of its trees."""

    _pass: HeadPass
    _eps: float | None = None
    """Of the head's last norm, where states that are fed back are not normed."""

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
