"""Who sees whom in packs of text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headstart.training.states import Batch


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


def sees_text(rows: Rows, batch: Batch, window: int | None) -> Tensor:
    """bool [pack, row, position]: the tokens that rows see, at most ``window`` positions back, their own included."""
    visible = rows.documents[:, :, None] == batch.documents[:, None, :]
    visible &= batch.positions[:, None, :] <= rows.reach[:, :, None]
    if window is not None:
        visible &= rows.positions[:, :, None] - batch.positions[:, None, :] < window
    return visible
