"""Which tokens a drafter needs to know: those that its target says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SMALLEST = 1024


def choose_draft_vocabulary(
    counts: NDArray[np.int64], size: int | None, required: Sequence[int] = (), coverage: float = 0.97
) -> tuple[Tensor, float]:
    """The most frequent tokens, ``required`` ones (what ends a turn) among them.

    Args:
        counts: [vocab] of the target's own tokens.
        size: of the draft vocabulary; None: the smallest power of two from 1024 on that covers ``coverage`` of what
            the target says, or everything.

    Returns:
        int64 [size] target ids, ascending (EAGLE-3's convention), and the share of the target's tokens they cover.
    """
    vocab = len(counts)
    first = np.zeros(vocab, dtype=np.bool_)
    first[list(required)] = True
    order = np.lexsort((np.arange(vocab), -counts, ~first))
    covered = np.cumsum(counts[order]) / max(int(counts.sum()), 1)
    if size is None:
        size = _SMALLEST
        while size < vocab and covered[size - 1] < coverage:
            size *= 2
    size = min(size, vocab)
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64)), float(covered[size - 1])
