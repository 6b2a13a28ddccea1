"""Which rows stand where in packs of text, and who sees whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart_train.states import Batch


@dataclass(frozen=True)
class Rows:
    """Rows of packs, all [pack, row] int64."""

    documents: Tensor
    """Number of the document a row belongs to."""
    positions: Tensor
    """Place in it."""
    reach: Tensor
    """Place of the last token of the text that it sees."""

    @classmethod
    def of_text(cls, batch: Batch) -> Rows:
        """The tokens themselves: each sees its document up to itself."""
        return cls(batch.documents, batch.positions, batch.positions)


@dataclass(frozen=True)
class Behind:
    """Places after which further rows stand, as many in each pack: shorter lists are filled with other places."""

    index: Tensor
    """int64 [pack, place] positions in the pack, ascending, those wanted first."""
    number: Tensor
    """int64 [pack, position] place of a position among ``index``, where it is wanted."""

    @classmethod
    def places(cls, batch: Batch, wanted: Tensor) -> Behind:
        most = max(int(wanted.sum(1).max()), 1)
        index = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return cls(index, wanted.cumsum(1) - 1)

    def rows(self, batch: Batch, slots: int) -> Rows:
        """The further rows, ``slots`` behind each place, side by side."""
        documents, reach = (table.gather(1, self.index) for table in (batch.documents, batch.positions))
        ahead = torch.arange(1, slots + 1, device=reach.device)
        positions = (reach[:, :, None] + ahead).flatten(1)
        return Rows(documents.repeat_interleave(slots, 1), positions, reach.repeat_interleave(slots, 1))

    def at(self, states: Tensor, places: Tensor) -> Tensor:
        """[pack, place, hidden] -> [n, hidden] at ``places`` bool [pack, position], all of them wanted ones."""
        pack, position = places.nonzero(as_tuple=True)
        return states[pack, self.number[pack, position]]


def sees_text(rows: Rows, batch: Batch, window: int | None) -> Tensor:
    """bool [pack, row, position]: the tokens that rows see, at most ``window`` positions back, their own included."""
    visible = rows.documents[:, :, None] == batch.documents[:, None, :]
    visible &= batch.positions[:, None, :] <= rows.reach[:, :, None]
    if window is not None:
        visible &= rows.positions[:, :, None] - batch.positions[:, None, :] < window
    return visible
