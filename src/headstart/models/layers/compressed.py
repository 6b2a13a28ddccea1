"""Attention to compressed keys in PyTorch (DeepSeek-V4, section 2.3): what keys are made of, and who sees them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.layers.rotary import Rotation

_PRODUCTS = 1 << 24
"""Products of heads of the indexer that are held at once."""


def compress(values: Tensor, weights: Tensor, places: Tensor, known: Tensor) -> Tensor:
    """[window, size] a mixture of what the tokens of each window give.

    Args:
        values: [window, token, given] of all tokens; where there are twice as many as ``places``, ``given`` has a part
            for the window after the token's own, then one for that.
        weights: the same.
        places: float32 [ratio, given] added to them.
        known: bool [window, token], False before the text begins.
    """
    ratio = len(places)
    if values.shape[1] > ratio:
        parts = [
            torch.cat((each[:, :ratio].chunk(2, -1)[0], each[:, ratio:].chunk(2, -1)[1]), dim=1)
            for each in (values, weights + places.repeat(2, 1))
        ]
        values, weights = parts
    else:
        weights = weights + places
    shares = weights.float().masked_fill(~known[..., None], -torch.inf).softmax(1).to(values.dtype)
    return (values.masked_fill(~known[..., None], 0) * shares).sum(1)


def turn_pairs_(heads: Tensor, rotation: Rotation, back: bool = False) -> None:
    """Rotate the last dimensions of [row, head, head_dim], neighbours together, in place."""
    turning = heads[..., heads.shape[-1] - rotation.dim :]
    pairs = turning.reshape(*turning.shape[:-1], -1, 2)
    halves = pairs.transpose(-1, -2).flatten(-2)
    rotation.apply_(halves, back)
    turning.copy_(halves.view(pairs.transpose(-1, -2).shape).transpose(-1, -2).flatten(-2))


def index_scores(queries: Tensor, keys: Tensor, shares: Tensor) -> Tensor:
    """float32 [sequence, row, key] how much an indexer's heads make of each key.

    Args:
        queries: [sequence, row, head, size].
        keys: [sequence, key, size].
        shares: float32 [sequence, row, head] of the heads, all scales in them.
    """
    turned = keys.float().transpose(1, 2)[:, None]
    rows = max(1, _PRODUCTS // (len(queries) * queries.shape[2] * keys.shape[1]))
    parts = zip(torch.split(queries.float(), rows, 1), torch.split(shares, rows, 1), strict=True)
    return torch.cat([(F.relu(part @ turned) * share[..., None]).sum(2) for part, share in parts], dim=1)


def keep_best(scores: Tensor, mask: Tensor, count: int) -> Tensor:
    """``mask`` [..., key], to be added to scores, with all hidden but the ``count`` best by ``scores``; of equal ones
    the earliest, so that a row's choice is its own."""
    if count >= scores.shape[-1]:
        return mask
    order = (scores + mask).sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.full_like(mask, -torch.inf).scatter_(-1, order, mask.gather(-1, order))
