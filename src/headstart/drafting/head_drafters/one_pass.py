"""Drafters whose head guesses several tokens in one pass, whatever the others are: a law for each depth.

The papers draft the chain of best tokens; a tree of the likeliest paths by the product of these laws (DDTree,
arXiv:2604.12989) needs no other training and no other pass. Guesses are point masses; those of sampled requests are
ranked by the target's own noise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.head_drafters.head_trees import CONFIDENCE_RATES, Ids, path_bounds, pruned_trees
from headstart.drafting.head_drafters.marginal_trees import likeliest_paths
from headstart.drafting.head_drafters.noise_ranking import NoiseRanking
from headstart.drafting.head_drafters.read_along import ReadingDrafter, SpeakingOptions
from headstart.drafting.head_drafters.reading import Reading
from headstart.heads.block import MOST_SLOTS


@dataclass(frozen=True)
class OnePassOptions(SpeakingOptions):
    draft_tokens: int = MOST_SLOTS
    """Depth of a draft at most; a pass goes as deep as its head was trained to guess."""
    width: int = 8
    """Best tokens of each depth that may be guessed; 1: the chain of the best ones."""


class OnePassDrafter(ReadingDrafter):
    """One pass, then the likeliest paths; sub-classes say what the pass is."""

    grade_rates = CONFIDENCE_RATES
    _options: OnePassOptions
    _slots: int
    """Tokens that a pass guesses at most."""
    _eps: float | None = None
    """Of the head's last norm, where states that say tokens are not normed."""

    @property
    def ranks(self) -> int:
        return self._options.width

    @abstractmethod
    def _say(self, drafted: Sequence[tuple[SequenceView, Reading]], slots: int) -> tuple[Tensor, Tensor]:
        """Read what was not read yet, and guess: states [sequence, slot, hidden] that say tokens, and logits
        [sequence, slot, draft vocab]."""

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        sequences = [sequence for sequence, _ in drafted]
        wide = wide_budgets(sequences, budgets)
        slots = min(self._options.draft_tokens, self._slots, max(budget.depth for budget in wide))
        states, logits = self._say(drafted, slots)
        budgets = self._deep_enough(sequences, states, logits, budgets)
        further = self._further_ids(drafted)
        logits = self._with_text_tokens(
            states.flatten(0, 1), logits.flatten(0, 1), drafted, further.shape[1], self._eps
        )
        return self._trees(sequences, logits, self._noise_ranking(drafted, further), further, budgets)

    def _deep_enough(
        self, sequences: Sequence[SequenceView], states: Tensor, logits: Tensor, budgets: Sequence[DraftBudget]
    ) -> Sequence[DraftBudget]:
        """The budgets, less deep where the head knows that deeper guesses are not worth it."""
        return budgets

    def _trees(
        self,
        sequences: Sequence[SequenceView],
        logits: Tensor,
        ranking: NoiseRanking,
        further: Ids,
        budgets: Sequence[DraftBudget],
    ) -> list[DraftTree]:
        """The likeliest paths.

        Args:
            logits: [sequence, slot, column].
            further: ids of the columns behind the draft vocabulary.
        """
        wide = wide_budgets(sequences, budgets)
        if ranking.sampled:
            slots = range(logits.shape[1])
            logits = torch.cat([ranking.scores(logits[:, slot, None], slot + 1) for slot in slots], dim=1)
        log_probs, tokens = self._best(logits, further)
        bounds = path_bounds(self._options.min_probability_of(wide, self._kit))
        grown = [
            likeliest_paths(
                log_probs[place, : budget.depth],
                tokens[place, : budget.depth],
                budget.nodes if beam_of(sequence) is not None else min(self._options.tree_nodes, budget.nodes),
                bounds.min_log_prob,
            )
            for place, (sequence, budget) in enumerate(zip(sequences, wide, strict=True))
        ]
        return pruned_trees(grown, sequences, budgets)
