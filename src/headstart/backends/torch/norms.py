"""Norms of a decoder's passes: computed in float32, returned in the input's dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.config import HeadNorms, LayerConfig, ModelConfig, NormKind
from headstart.models.linear_weights import NormWeights


class Norm:
    """RMS or layer norm over the last axis."""

    def __init__(
        self, weights: NormWeights, device: torch.device, kind: NormKind, eps: float, offset: float = 0.0
    ) -> None:
        self.weight = weights.weight.to(device, torch.float32) + offset
        self.bias = None if weights.bias is None else weights.bias.to(device, torch.float32)
        self.eps = eps
        self.is_rms = kind == "rms"

    @staticmethod
    def of(config: ModelConfig, weights: NormWeights, device: torch.device) -> Norm:
        """A norm of the stream."""
        return Norm(weights, device, config.norms.kind, config.norms.eps, config.norms.offset)

    def __call__(self, x: Tensor) -> Tensor:
        shape = self.weight.shape
        if self.is_rms:
            return F.rms_norm(x.float(), shape, self.weight, self.eps).to(x.dtype)
        return F.layer_norm(x.float(), shape, self.weight, self.bias, self.eps).to(x.dtype)


class HeadNorm:
    """The norms of a layer's queries and keys; ``k``: None where it makes queries alone."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        norms: HeadNorms,
        q: NormWeights,
        k: NormWeights | None,
        device: torch.device,
    ) -> None:
        self.norms, self.eps = norms, config.norms.eps
        parts = [(config.heads_of(layer), q)]
        if k is not None:
            parts.append((config.kv_heads_of(layer), k))
        self.heads = [heads for heads, _ in parts]
        size = config.head_dim_of(layer)

        def joined(tensors: list[Tensor]) -> Tensor:
            rows = [
                tensor.view(-1, size).expand(heads, size) for (heads, _), tensor in zip(parts, tensors, strict=True)
            ]
            return torch.cat(rows).to(device, torch.float32)

        self.weight = joined([norm.weight for _, norm in parts]) + config.norms.offset
        biases = [norm.bias for _, norm in parts if norm.bias is not None]
        self.bias = joined(biases) if biases else None

    def apply_(self, heads: Tensor) -> None:
        """[row, heads of queries and keys, head_dim] in place."""
        x = heads.float()
        if self.norms.reach == "all":
            x = torch.cat([self._norm(part, 2) for part in torch.split(x, self.heads, dim=1)], dim=1)
        else:
            x = self._norm(x, 1)
        x = x * self.weight
        heads.copy_(x if self.bias is None else x + self.bias)

    def _norm(self, x: Tensor, axes: int) -> Tensor:
        shape = x.shape[-axes:]
        if self.norms.kind == "rms":
            return F.rms_norm(x, shape, None, self.eps)
        return F.layer_norm(x, shape, None, None, self.eps)
