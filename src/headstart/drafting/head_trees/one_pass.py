"""Drafters whose head guesses several tokens in one pass, whatever the others are: a law for each depth.

The papers draft the chain of best tokens; a tree of the likeliest paths by the product of these laws (DDTree,
arXiv:2604.12989) needs no other training and no other pass. Guesses are point masses, those of sampled requests ranked
by the target's own noise; or, if asked for, draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.head_trees.drawn_paths import drawn_tree, fitting_paths, law_of, laws_along, may_draw
from headstart.drafting.head_trees.growing import GrowingDrafter
from headstart.drafting.head_trees.marginal_trees import likeliest_paths
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.drafting.head_trees.read_along import SpeakingOptions
from headstart.drafting.head_trees.reading import Reading
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, Ids, path_bounds, pruned_trees
from headstart.drafting.methods.dflash.head import MOST_SLOTS
from headstart.drafting.options import require
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits

MOST_DRAWS = 64


@dataclass(frozen=True)
class OnePassOptions(SpeakingOptions):
    draft_tokens: int = MOST_SLOTS
    """Depth of a draft at most; a pass goes as deep as its head was trained to guess."""
    width: int = 8
    """Best tokens of each depth that may be guessed; 1: the chain of the best ones."""
    draws: int = 0
    """Paths that are drawn from the laws of the depths, where a request samples and its rule checks draws; 0: guesses
    are ranked by the target's own noise instead, which hits more often (docs/experiments/rounds.md, 0113)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.draws <= MOST_DRAWS, f"draws is {self.draws}; it must be 0 to {MOST_DRAWS}.")


class OnePassDrafter(GrowingDrafter):
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
        # Compiled code makes point masses alone.
        if self._growth is not None and not self._draws(sequences):
            return self._grown(self._growth, drafted, budgets)
        wide = wide_budgets(sequences, budgets)
        slots = min(self._options.draft_tokens, self._slots, max(budget.depth for budget in wide))
        states, logits = self._say(drafted, slots)
        budgets = self._deep_enough(sequences, states, logits, budgets)
        further = self._further_ids(drafted)
        logits = self._with_text_tokens(
            states.flatten(0, 1), logits.flatten(0, 1), drafted, further.shape[1], self._eps
        )
        drawn = {
            place: self._drawn(sequence, logits[place], further[place], budgets[place])
            for place, sequence in enumerate(sequences)
            if self._draws([sequence])
        }
        ranked = [place for place in range(len(drafted)) if place not in drawn]
        if not ranked:
            return list(drawn.values())
        ranking = self._noise_ranking([drafted[place] for place in ranked], further[ranked])
        grown = self._trees(
            [sequences[place] for place in ranked],
            logits[ranked],
            ranking,
            further[ranked],
            [budgets[place] for place in ranked],
        )
        trees = drawn | dict(zip(ranked, grown, strict=True))
        return [trees[place] for place in range(len(drafted))]

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        return None if self._draws(sequences) else super().stretch(sequences, limits)

    def _draws(self, sequences: Sequence[SequenceView]) -> bool:
        """Whether paths are drawn for one of these."""
        return self._options.draws > 0 and any([may_draw(sequence) for sequence in sequences])

    def _drawn(self, sequence: SequenceView, logits: Tensor, further: Ids, budget: DraftBudget) -> DraftTree:
        """Paths that are drawn, from logits [slot, column]."""
        ids = torch.cat((self._running.target_ids.cpu(), torch.from_numpy(further)))
        rows = logits.cpu()

        def law_at(slot: int, before: int) -> Tensor:
            added = self._added(before)
            row = rows[slot] if added is None else rows[slot] + F.pad(added, (0, len(further)))
            return law_of(row, ids, sequence.params, self._vocab_size)

        root = sequence.tokens[-1]
        paths, depth = fitting_paths(
            self._options.draws, min(budget.depth, len(rows)), min(self._options.tree_nodes, budget.nodes)
        )
        law_after = laws_along(law_at, root, chained=self._added(root) is not None)
        return drawn_tree(sequence.noise, len(sequence.tokens) - 1, law_after, paths, depth)

    def _added(self, before: int) -> Tensor | None:
        """What the token before a guess adds to the logits of the draft vocabulary, on the host; None: nothing ever."""
        return None

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
