"""Drafts from heads that say several future tokens at once: the shared part of Medusa and blockwise decoding.

The heads read the target's state at the last committed position but the root's, which the last pass has brought, and
perhaps the root; no cache is needed. What they say of one depth does not depend on what was said of the depths above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import HeadOptions, open_head, run_head
from headstart.drafting.head_trees.last_states import LastStates, grow_where_ready
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.drafting.head_trees.trees import HeadTrees
from headstart.passes.batch import FINAL_TAP
from headstart.passes.draft_tree import DraftTree
from headstart_lab.methods.medusa import PASSES
from headstart_lab.methods.medusa.head import ParallelHeads, ParallelKind


class ParallelHeadsDrafter:
    """A tree over the best tokens of every slot.

    Args:
        kind: of heads that are run.
        ranks: best tokens of a slot that a tree may hold.
        new_trees: trees that have not grown yet, one for each budget.
    """

    needs = TargetSignals(taps=(FINAL_TAP,))

    def __init__(
        self,
        context: DraftContext,
        options: HeadOptions,
        kind: ParallelKind,
        ranks: int,
        new_trees: Callable[[Sequence[DraftBudget]], HeadTrees],
    ) -> None:
        heads = open_head(context, options.model, kind, ParallelHeads)
        self._options = options
        self._vocab_size = context.vocab_size
        self._slots = heads.config.slots
        self._new_trees = new_trees
        self._ranks = min(ranks, heads.config.draft_vocab_size)
        self._pass = run_head(context, PASSES, heads, context.require_tables()(), options.precision)
        self._states = LastStates()

    @property
    def nbytes(self) -> int:
        return self._pass.nbytes

    def begin(self, sequence: SequenceView) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        self._states.forget(sequence_id)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._states.observe(outcomes)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return grow_where_ready(sequences, budgets, self._states.reach, self._grow)

    def _grow(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        slots = min(self._slots, self._options.draft_tokens)
        roots = torch.tensor([sequence.tokens[-1] for sequence in sequences])
        logits = self._pass.logits(self._states.of(sequences), roots)[:, :slots]
        ranking = NoiseRanking(sequences, self._pass.target_ids, self._vocab_size)
        if ranking.sampled:
            logits = torch.cat([ranking.scores(logits[:, slot, None], slot + 1) for slot in range(slots)], dim=1)
        log_probs, tokens = self._pass.best(logits, self._ranks)
        trees = self._new_trees(budgets)
        beams = 1
        for slot in range(slots):
            # Whatever stands above, a slot says the same.
            said = (log_probs[:, slot, None], tokens[:, slot, None])
            grown = trees.grow(np.repeat(said[0], beams, axis=1), np.repeat(said[1], beams, axis=1))
            if grown is None:
                break
            beams = grown.tokens.shape[1]
        return trees.trees(self._options.tree_nodes, budgets)
