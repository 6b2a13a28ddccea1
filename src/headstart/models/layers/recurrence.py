"""What mixers that keep a state are told of the rows around them.

A recurrence has two forms. Row by row takes any rows, one after the other. A *scan* takes pieces of a text, whose rows
are computed together in matrix products; the state goes from piece to piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PIECE = 32
"""Rows of a whole piece: those of a block of the cache, so that prompts are cut, and states kept, where pieces end."""

LookBack = Callable[[Tensor], Tensor]
"""What rows give to a convolution [row, channel] -> what each sees of it [row, length, channel]: those before it on its
path, nothing (zeros) before a text's first, and its own last."""
Step = Callable[[Tensor, Tensor | slice], tuple[Tensor, Tensor]]
"""States before some rows [row, ...] and which rows of the pass they are -> the states after them, and what the rows
give [row, ...]."""


@dataclass(frozen=True)
class Pieces:
    """Rows of a pass, in pieces that can be scanned. Each lies in one text, row after row."""

    rows: Tensor | slice
    """[piece * PIECE] of the pass; behind a short piece's last row that one again."""
    real: Tensor | None
    """bool [piece, PIECE, 1] False for rows behind a piece's last one, which must change no state; None: there are no
    such rows."""

    def cut(self, each: Tensor) -> Tensor:
        """What belongs to the rows of the pass [row, ...]: [piece, PIECE, ...]."""
        return each[self.rows].view(-1, PIECE, *each.shape[1:])

    def cut_real(self, each: Tensor) -> Tensor:
        """The same of [row, number]; 0 behind a piece's last row."""
        found = self.cut(each)
        return found if self.real is None else found * self.real


ScanStep = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""States before some pieces [piece, ...] and which they are -> the states after them, and what their rows give
[piece, PIECE, ...]."""
Scan = Callable[[Pieces], ScanStep]
"""What depends on no state is computed for all of the pieces at once."""
Recur = Callable[[Step, Scan | None], Tensor]
"""What all rows give [row, ...], each from the state that the one before it has left. Without a scan row by row."""


def decays_between(decay: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of what was written, inside pieces.

    Args:
        decay: float32 [..., PIECE] logarithm of each row's decay, at most 0.

    Returns:
        float32 [..., PIECE] the decay from before the piece to after each row, and [..., PIECE, PIECE] that from after
        the second row to after the first; 0 where this one stands before it.
    """
    later = torch.ones(PIECE, PIECE, dtype=torch.bool, device=decay.device).triu(1)
    # Sums of the rows between alone: differences of longer ones would be rounded by what came before.
    sums = decay[..., :, None].expand(*decay.shape, PIECE).masked_fill(~later.mT, 0).cumsum(-2)
    return decay.cumsum(-1).exp_(), sums.masked_fill_(later, -torch.inf).exp_()
