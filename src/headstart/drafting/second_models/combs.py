"""Chains with further guesses beside each of theirs: these cost a row of the target's, and no pass of the drafter."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.drafting.second_models.chains import ChainDraft
from headstart.drafting.second_models.draft_law import DraftLaw
from headstart.passes.draft_tree import ROOT, DraftTree


class Comb(ChainDraft):
    """A growing chain of point masses and what stands beside its tokens; of draws, a chain alone.

    Args:
        sequence, law, length: as of ``ChainDraft``.
        width: guesses at each place of the chain at most, its own included.
        nodes: guesses in all; those of the chain come before those beside it.
    """

    def __init__(self, sequence: SequenceView, law: DraftLaw, length: int, width: int, nodes: int) -> None:
        super().__init__(sequence, law, length)
        self._width = width
        self._spare = nodes - length
        self._beside: list[list[int]] = []
        """[token] the others at its place, the likeliest first."""

    def extend(self, logits: Tensor) -> bool:
        """See ``ChainDraft``."""
        if not self.law.point_masses:
            return super().extend(logits)
        if not self.law.is_confident(logits, self.tokens):
            return False
        ranked = self.law.ranked(logits, self.sequence, self.tokens, 1 + min(self._width - 1, self._spare))
        if not ranked:
            return False
        self.tokens.append(ranked[0])
        self._beside.append(ranked[1:])
        self._spare -= len(ranked) - 1
        return True

    def tree(self) -> DraftTree:
        """See ``ChainDraft``."""
        if not self._beside:
            return super().tree()
        tokens: list[int] = []
        parents: list[int] = []
        parent = ROOT
        for token, beside in zip(self.tokens, self._beside, strict=True):
            place = len(tokens)
            tokens += [token, *beside]
            parents += [parent] * (1 + len(beside))
            parent = place
        return DraftTree(np.asarray(tokens, dtype=np.int32), np.asarray(parents, dtype=np.int32))
