"""Parts of a layer connected to several residual streams (manifold-constrained hyper-connections: Xie et al. 2026).

Streams are [row, stream, hidden].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.config import ModelConfig
from headstart.models.layers.layer import Operation
from headstart.models.weights import HyperWeights


def run_connected(
    config: ModelConfig, weights: HyperWeights, streams: Tensor, norm: Operation | None, part: Operation | None
) -> Tensor:
    """The streams after a part of a layer, which reads their mixture through its ``norm`` [row, hidden]."""
    hyper = config.residual.hyper
    assert hyper is not None
    assert norm is not None
    assert part is not None
    read, give, *mixture = _told(config, weights, streams)
    share = hyper.most * torch.sigmoid(give) + (0 if hyper.rounds else hyper.eps)
    given = share.to(streams.dtype)[..., None] * part(norm(_mixed(read, streams, hyper.eps)))[:, None]
    if not mixture:
        return given + streams
    mixed = torch.softmax(mixture[0].view(-1, hyper.count, hyper.count), dim=-1) + hyper.eps
    mixed = mixed / (mixed.sum(dim=-2, keepdim=True) + hyper.eps)
    for _ in range(hyper.rounds - 1):
        mixed = mixed / (mixed.sum(dim=-1, keepdim=True) + hyper.eps)
        mixed = mixed / (mixed.sum(dim=-2, keepdim=True) + hyper.eps)
    return given + torch.matmul(mixed.to(streams.dtype).mT, streams)


def merged(config: ModelConfig, weights: HyperWeights | None, streams: Tensor) -> Tensor:
    """[row, hidden] what the streams are behind the last layer."""
    if weights is None or config.residual.hyper is None:
        return streams.mean(1)
    (shares,) = _told(config, weights, streams)
    return _mixed(shares, streams, config.residual.hyper.eps)


def _told(config: ModelConfig, weights: HyperWeights, streams: Tensor) -> tuple[Tensor, ...]:
    """What all streams tell, kind by kind, each float32 [row, numbers]."""
    count, mix = streams.shape[1], weights.mix.flatten(1)
    kinds = [count, count, count**2][: len(weights.scale)]
    told = F.linear(F.rms_norm(streams.flatten(1).float(), mix.shape[1:], None, config.norms.eps), mix)
    counts = torch.tensor(kinds, device=streams.device)
    told = told * weights.scale.repeat_interleave(counts, output_size=sum(kinds)) + weights.base
    return torch.split(told, kinds, dim=-1)


def _mixed(shares: Tensor, streams: Tensor, eps: float) -> Tensor:
    """[row, hidden]"""
    return ((torch.sigmoid(shares) + eps)[..., None] * streams).sum(1).to(streams.dtype)
