"""Trees of heads that guess several tokens in one pass, whatever the others are: a law for each depth.

The papers draft the chain of best tokens; a tree of the likeliest paths by the product of these laws (DDTree,
arXiv:2604.12989) needs no other training and no other pass. A head may also know what one token says of the next
(DSpark's Markov factor), which makes the products of these laws honest: its tree grows level by level. Guesses are
point masses, those of sampled requests ranked by the target's own noise; or, if asked for, draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView, beam_of
from headstart.drafting.beam_trees import wide_budgets
from headstart.drafting.head_trees.draft_vocabulary import Drafted, DraftVocabulary
from headstart.drafting.head_trees.drawn_paths import drawn_tree, fitting_paths, law_of, laws_along, may_draw
from headstart.drafting.head_trees.growing import CalledGrowth
from headstart.drafting.head_trees.head_drafter import TreeGrowth
from headstart.drafting.head_trees.head_source import SpeakingOptions
from headstart.drafting.head_trees.marginal_trees import likeliest_paths
from headstart.drafting.head_trees.trees import Ids, pruned_trees
from headstart.drafting.heads.formats import MOST_SLOTS
from headstart.drafting.options import require
from headstart.passes.backend import BackendKit
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits

MOST_DRAWS = 64
Say = Callable[[Drafted, int], tuple[Tensor, Tensor]]
"""Reads what was not read yet, and guesses so many slots: states [sequence, slot, hidden] that say tokens, and logits
[sequence, slot, draft vocab]."""
Shorten = Callable[[Sequence[SequenceView], Tensor, Tensor, Sequence[DraftBudget]], Sequence[DraftBudget]]
"""Sequences, their states and logits, and budgets -> these, less deep where the head knows that deeper guesses are not
worth it."""
Following = Callable[[Tensor, Tensor], Tensor]
"""int64 [row] tokens, and states [row, hidden] that say what comes after them -> what is added to the logits of that
[row, draft vocab]."""


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


class OnePassGrowth(TreeGrowth):
    """One pass, then the likeliest paths.

    Args:
        say: the pass.
        slots: tokens that it guesses at most.
        vocabulary: what the head may say.
        kit: the target's.
        called: what makes whole drafts of point masses in one call; None: nothing does.
        following: what one guess says of the next; None: nothing.
        shorten: what ends drafts early.
    """

    def __init__(
        self,
        say: Say,
        slots: int,
        vocabulary: DraftVocabulary,
        options: OnePassOptions,
        kit: BackendKit,
        called: CalledGrowth | None,
        following: Following | None = None,
        shorten: Shorten | None = None,
    ) -> None:
        self.called = called
        self._say = say
        self._slots = min(options.draft_tokens, slots)
        self._vocabulary = vocabulary
        self._options = options
        self._kit = kit
        self._following = following
        self._shorten = shorten

    def grow(self, drafted: Drafted, budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        sequences = [sequence for sequence, _ in drafted]
        # Compiled code makes point masses alone.
        if self.called is not None and not self._draws(sequences):
            return self.called.grow(drafted, budgets)
        wide = wide_budgets(sequences, budgets)
        slots = min(self._slots, max(budget.depth for budget in wide))
        states, logits = self._say(drafted, slots)
        if self._shorten is not None:
            budgets = self._shorten(sequences, states, logits, budgets)
        further = self._vocabulary.further_ids(drafted)
        logits = self._vocabulary.with_text_tokens(
            states.flatten(0, 1), logits.flatten(0, 1), drafted, further.shape[1]
        )
        trees = {
            place: self._drawn(sequence, states[place], logits[place], further[place], budgets[place])
            for place, sequence in enumerate(sequences)
            if self._draws([sequence])
        }
        ranked = [place for place in range(len(drafted)) if place not in trees]
        if ranked:
            whom, allowed = [drafted[place] for place in ranked], [budgets[place] for place in ranked]
            if self._following is None:
                grown = self._likeliest(whom, logits[ranked], further[ranked], allowed)
            else:
                grown = self._chained(whom, states[ranked], logits[ranked], further[ranked], allowed)
            trees |= dict(zip(ranked, grown, strict=True))
        return [trees[place] for place in range(len(drafted))]

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        return None if self.called is None or self._draws(sequences) else self.called.stretch(sequences, limits)

    def _draws(self, sequences: Sequence[SequenceView]) -> bool:
        """Whether paths are drawn for one of these."""
        return self._options.draws > 0 and any([may_draw(sequence) for sequence in sequences])

    def _drawn(
        self, sequence: SequenceView, states: Tensor, logits: Tensor, further: Ids, budget: DraftBudget
    ) -> DraftTree:
        """Paths that are drawn, from states [slot, hidden] and logits [slot, column]."""
        ids, following = self._vocabulary.columns(further), self._following
        rows = logits.cpu()

        def law_at(slot: int, before: int) -> Tensor:
            row = rows[slot]
            if following is not None:
                added = following(torch.tensor([before]), states[slot : slot + 1])[0].cpu()
                row = row + F.pad(added, (0, len(further)))
            return law_of(row, ids, sequence.params, self._vocabulary.vocab_size)

        paths, depth = fitting_paths(
            self._options.draws, min(budget.depth, len(rows)), min(self._options.tree_nodes, budget.nodes)
        )
        law_after = laws_along(law_at, sequence.tokens[-1], chained=following is not None)
        return drawn_tree(sequence.noise, len(sequence.tokens) - 1, law_after, paths, depth)

    def _likeliest(
        self, drafted: Drafted, logits: Tensor, further: Ids, budgets: Sequence[DraftBudget]
    ) -> list[DraftTree]:
        """The likeliest paths where no guess depends on another.

        Args:
            logits: [sequence, slot, column].
            further: ids of the columns behind the draft vocabulary.
        """
        sequences = [sequence for sequence, _ in drafted]
        wide = wide_budgets(sequences, budgets)
        ranking = self._vocabulary.ranking(drafted, further)
        if ranking.sampled:
            slots = range(logits.shape[1])
            logits = torch.cat([ranking.scores(logits[:, slot, None], slot + 1) for slot in slots], dim=1)
        log_probs, tokens = self._vocabulary.best(logits, further, self._options.width)
        bounds = self._options.bounds_of(wide, self._kit)
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

    def _chained(
        self, drafted: Drafted, states: Tensor, logits: Tensor, further: Ids, budgets: Sequence[DraftBudget]
    ) -> list[DraftTree]:
        """The same where a guess depends on the one before it: paths are looked for level by level; nothing is added
        to the columns behind the draft vocabulary."""
        assert self._following is not None
        trees = self._options.new_trees(budgets, self._kit)
        ranking = self._vocabulary.ranking(drafted, further)
        before = torch.tensor([sequence.tokens[-1:] for sequence, _ in drafted])
        for slot in range(logits.shape[1]):
            said = states[:, slot, None].expand(-1, before.shape[1], -1).flatten(0, 1)
            added = self._following(before.flatten(), said).view(*before.shape, -1)
            rows = logits[:, slot, None] + F.pad(added, (0, further.shape[1]))
            scores = ranking.scores(rows, slot + 1)
            beams = trees.grow(*self._vocabulary.best(scores, further, self._options.width))
            if beams is None:
                break
            before = torch.from_numpy(beams.tokens)
        return trees.trees(self._options.tree_nodes, budgets)
