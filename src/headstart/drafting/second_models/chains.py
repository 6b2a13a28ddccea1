"""Drafts made one token after another, for several sequences at once: one pass a step over all that still grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.second_models.draft_law import DraftLaw, DraftLaws
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import Stream


class Reader(Protocol):
    """A model that reads on from what its cache holds of each sequence."""

    def catch_up(self, sequences: Sequence[SequenceView]) -> dict[int, Tensor]:
        """Read each sequence up to its root: id -> logits [vocab] after it.

        Sequences that cannot be read (no room in cache or context) are left out.
        """
        ...

    def read(self, tokens: Mapping[int, int]) -> dict[int, Tensor]:
        """One pass that reads one further token of each sequence: id -> logits [vocab] after it, likewise."""
        ...


class ChainDraft:
    """The growing draft of one sequence.

    Args:
        sequence: to be drafted for.
        law: of the draft.
        length: tokens at most.
        first_draw: index of the first draw; draws of one round need different ones.
    """

    def __init__(self, sequence: SequenceView, law: DraftLaw, length: int, first_draw: int = 0) -> None:
        self.sequence = sequence
        self.law = law
        self.length = length
        self.tokens: list[int] = []
        self.rows: list[Tensor] = []
        """[token] the law each was drawn from, float64 [vocab]; empty where guesses are point masses."""
        self._first_draw = first_draw

    @property
    def full(self) -> bool:
        return len(self.tokens) >= self.length

    def extend(self, logits: Tensor) -> bool:
        """Guess one more token from the logits [vocab] before it; False where the draft ends instead.

        It ends before anything is drawn, so the law of what was drawn is untouched (docs/exactness.md 0).
        """
        if self.law.point_masses:
            if not self.law.is_confident(logits, self.tokens):
                return False
            self.tokens.append(self.law.decide(logits, self.sequence, self.tokens))
            return True
        row = self.law.probs(logits, self.tokens)
        if not self.law.is_confident(logits, self.tokens, row):
            return False
        root, draw = len(self.sequence.tokens) - 1, self._first_draw + len(self.tokens)
        self.rows.append(row)
        self.tokens.append(self.sequence.noise.draw(Stream.DRAFT, root, draw, row))
        return True

    def tree(self) -> DraftTree:
        """The draft as it is."""
        return DraftTree.chain(self.tokens, torch.stack(self.rows) if self.rows else None)


def propose_chains(
    model: Reader, laws: DraftLaws, draft_tokens: int, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]
) -> list[DraftTree]:
    """A chain for each sequence: ``draft_tokens`` long, or as long as its budget allows."""
    chains = [
        ChainDraft(sequence, laws.of(sequence), min(draft_tokens, budget.nodes, budget.depth))
        for sequence, budget in zip(sequences, budgets, strict=True)
    ]
    draft_chains(model, chains)
    return [chain.tree() for chain in chains]


def draft_chains(model: Reader, chains: Sequence[ChainDraft]) -> None:
    """Grow every chain to its length, or to where it ends or the model finds no room.

    The last token of a chain is not read: the logits after it are not needed.
    """
    growing = {chain.sequence.id: chain for chain in chains if not chain.full}
    logits = model.catch_up([chain.sequence for chain in growing.values()]) if growing else {}
    while logits:
        extended = {
            sequence_id: growing[sequence_id].tokens[-1]
            for sequence_id, row in logits.items()
            if growing[sequence_id].extend(row) and not growing[sequence_id].full
        }
        logits = model.read(extended) if extended else {}
