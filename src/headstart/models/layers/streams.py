"""Several residual streams, of which layers compute the first (alternating updates: Baykal et al. 2023, section 3, as
Gemma 3n has them in transformers' models/gemma3n).

Streams are [row, stream, hidden].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from headstart.models.layers.layer import Operation

_LEAST_POWER = 1e-5


class StreamsParts(Protocol):
    """By the names of ``StreamsWeights``."""

    @property
    def router(self) -> Operation: ...
    @property
    def router_norm(self) -> Operation: ...
    @property
    def predict(self) -> Operation: ...
    @property
    def correct(self) -> Operation: ...


def predicted(parts: StreamsParts, streams: Tensor) -> Tensor:
    """What the streams will be, before the layer has said what its own is."""
    count = streams.shape[1]
    shares = parts.predict(_routed(parts, streams[:, 0])).view(-1, count, count)
    return streams + torch.matmul(shares, streams)


def corrected(parts: StreamsParts, streams: Tensor, computed: Tensor) -> Tensor:
    """The predicted streams, after the layer has computed the first one [row, hidden]."""
    shares = parts.correct(_routed(parts, computed)) + 1.0
    return streams + shares[..., None] * (computed - streams[:, 0])[:, None]


def _routed(parts: StreamsParts, x: Tensor) -> Tensor:
    """[row, hidden] -> [row, stream]"""
    read = parts.router_norm(x) * x.shape[-1] ** -1.0
    return torch.tanh(parts.router(read).float()).to(x.dtype)


def spread(projections: Sequence[Operation], x: Tensor) -> Tensor:
    """Embeddings [row, hidden] -> streams, all as strong as the first, which they are themselves."""
    return torch.stack([x, *(_as_strong(project(x), x) for project in projections)], dim=1)


def merged(projections: Sequence[Operation], streams: Tensor) -> Tensor:
    """The mean of all streams [row, hidden], each as strong as the first."""
    first = streams[:, 0]
    others = (_as_strong(project(streams[:, 1 + index]), first) for index, project in enumerate(projections))
    return torch.stack([first, *others], dim=1).mean(dim=1)


def _as_strong(x: Tensor, first: Tensor) -> Tensor:
    strength = first.square().mean(-1, keepdim=True).sqrt()
    return x * strength / x.square().mean(-1, keepdim=True).clamp(min=_LEAST_POWER).sqrt()
