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
    hyper, size = config.residual.hyper, weights.mix.shape[1]
    assert hyper is not None
    assert norm is not None
    assert part is not None
    count, eps = hyper.count, hyper.eps
    said = F.linear(F.rms_norm(streams.flatten(1).float(), (size,), None, config.norms.eps), weights.mix)
    counts = torch.tensor([count, count, count**2], device=streams.device)
    said = said * weights.scale.repeat_interleave(counts, output_size=len(weights.base)) + weights.base
    read, give, mixture = torch.split(said, [count, count, count**2], dim=-1)
    mixed = torch.softmax(mixture.view(-1, count, count), dim=-1) + eps
    mixed = mixed / (mixed.sum(dim=-2, keepdim=True) + eps)
    for _ in range(hyper.rounds - 1):
        mixed = mixed / (mixed.sum(dim=-1, keepdim=True) + eps)
        mixed = mixed / (mixed.sum(dim=-2, keepdim=True) + eps)
    entered = ((torch.sigmoid(read) + eps)[..., None] * streams).sum(1).to(streams.dtype)
    given = (2 * torch.sigmoid(give)).to(streams.dtype)[..., None] * part(norm(entered))[:, None]
    return given + torch.matmul(mixed.to(streams.dtype).mT, streams)
