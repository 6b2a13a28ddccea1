"""The target's best tokens after many rows at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STRIPES = 384


def best_ids(logits: Tensor, count: int) -> NDArray[np.int64]:
    """[row, min(count, vocab)] token ids of the largest of float32 ``logits`` [row, vocab], the best first.

    Every ``_STRIPES``-th logit makes a stripe. The best lie in the stripes of the largest peaks, so that almost all
    logits are read once only: several times as fast as ``topk`` over whole rows.
    """
    rows, vocab = logits.shape
    depth = vocab // _STRIPES
    if count >= _STRIPES or depth < 2:
        return _host(logits.topk(min(count, vocab)).indices)
    striped = logits[:, : depth * _STRIPES].view(rows, depth, _STRIPES)
    best = striped.amax(1).topk(count, sorted=False).indices
    places = (best[:, :, None] + torch.arange(0, depth * _STRIPES, _STRIPES, device=logits.device)).flatten(1)
    if vocab > depth * _STRIPES:
        rest = torch.arange(depth * _STRIPES, vocab, device=logits.device)
        places = torch.cat((places, rest.expand(rows, -1)), dim=1)
    return _host(places.gather(1, logits.gather(1, places).topk(count).indices))


def _host(ids: Tensor) -> NDArray[np.int64]:
    array: NDArray[np.int64] = ids.numpy(force=True)
    return array
