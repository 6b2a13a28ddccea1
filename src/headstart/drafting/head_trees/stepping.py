"""Trees that grow step by step: a step of the head for each level, over the beams of all sequences.

The head's row i reads what the target saw at position i and the token after it. Rows of committed tokens are made
from the target's true states, which every pass brings; a draft goes on from the head's own. The rows of a draft are
forgotten after it, so drafting always continues from what the target saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.drafting.base import DraftBudget
from headstart.drafting.head_trees.draft_vocabulary import Drafted, DraftVocabulary
from headstart.drafting.head_trees.head_drafter import TreeGrowth
from headstart.drafting.head_trees.head_source import HeadOptions
from headstart.drafting.head_trees.read_along import unread_rows
from headstart.drafting.head_trees.trees import HeadTrees
from headstart.drafting.heads.head_pass import DraftRows, HeadPass
from headstart.passes.draft_tree import DraftTree


def _as_they_are(states: Tensor, _: int) -> Tensor:
    return states


class SteppedGrowth(TreeGrowth):
    """Trees of several steps.

    Args:
        running: the head's pass.
        new_trees: empty trees, one for each budget, which say what shape they get.
        ranks: guesses after one row at most.
        said: of states that are fed back and a draft's level, those [row, hidden] that say its tokens.
    """

    def __init__(
        self,
        running: HeadPass,
        vocabulary: DraftVocabulary,
        options: HeadOptions,
        new_trees: Callable[[Sequence[DraftBudget]], HeadTrees],
        ranks: int,
        said: Callable[[Tensor, int], Tensor] = _as_they_are,
    ) -> None:
        self.running = running
        self._vocabulary = vocabulary
        self._options = options
        self._new_trees = new_trees
        self._ranks = ranks
        self._said = said

    def grow(self, drafted: Drafted, budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """What was not read yet, then one step a level, over the beams of all sequences."""
        count, vocabulary = len(drafted), self._vocabulary
        caches = [reading.cache for _, reading in drafted]
        states, logits = self.running.read(*unread_rows(drafted))
        true_rows = [cache.rows for cache in caches]
        further = vocabulary.further_ids(drafted)
        ranking = vocabulary.ranking(drafted, further)
        trees = self._new_trees(budgets)
        depth = min(self._options.draft_tokens, max(budget.depth for budget in budgets))
        paths = np.zeros((count, 1, 0), dtype=np.int32)
        for level in range(1, depth + 1):
            logits = vocabulary.with_text_tokens(self._said(states, level), logits, drafted, further.shape[1])
            beams = trees.grow(*vocabulary.best(ranking.scores(logits, level), further, self._ranks))
            if level == depth or beams is None:
                break
            width, before = beams.tokens.shape[1], len(states) // count
            # A beam reads the state of the row that guessed it, and sees what that row saw, that row, and itself.
            rows = beams.parents + before * np.arange(count)[:, None]
            held = caches[0].rows - true_rows[0]
            own = np.broadcast_to(np.arange(held, held + width, dtype=np.int32)[:, None], (count, width, 1))
            paths = np.concatenate((np.take_along_axis(paths, beams.parents[:, :, None], axis=1), own), axis=2)
            states, logits = self.running.step(
                beams.tokens.ravel().astype(np.int32),
                states[torch.from_numpy(rows.ravel()).to(states.device)],
                [DraftRows(cache, width, paths[i]) for i, cache in enumerate(caches)],
            )
        for cache, count_true in zip(caches, true_rows, strict=True):
            cache.truncate(count_true)
        return trees.trees(self._options.tree_nodes, budgets)
