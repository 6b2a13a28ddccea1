"""Channel parts of a pass: what a layer does with every row by itself."""

from __future__ import annotations

from statistics import NormalDist
from typing import Protocol

import torch
from torch import Tensor

from headstart.backends.torch.linear import Linear
from headstart.backends.torch.norms import Norm
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.layers.experts import run_experts
from headstart.models.layers.layer import run_mlp
from headstart.models.weights import ChannelWeights, ExpertsWeights, MlpAndExpertsWeights, MlpWeights


class Channel(Protocol):
    """[row, hidden] -> [row, hidden]."""

    @property
    def nbytes(self) -> int:
        """Of its matrices."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...


def channel_of(
    config: ModelConfig, layer: LayerConfig, weights: ChannelWeights, dtype: torch.dtype, device: torch.device
) -> Channel:
    """What computes a channel part of this kind."""
    if isinstance(weights, MlpAndExpertsWeights):
        return MlpAndExperts(config, layer, weights, dtype, device)
    if isinstance(weights, ExpertsWeights):
        return Experts(config, layer, weights, dtype, device)
    return Mlp(config, weights, dtype, device, layer.sparsity, layer.cuts(layer.mlp_limit))


class Mlp:
    """A dense channel part; ``sparsity`` and ``limit``: see ``LayerConfig``."""

    def __init__(
        self,
        config: ModelConfig,
        weights: MlpWeights,
        dtype: torch.dtype,
        device: torch.device,
        sparsity: float = 0.0,
        limit: tuple[float, float] | None = None,
    ) -> None:
        self.up, self.down = Linear(weights.up, dtype, device), Linear(weights.down, dtype, device)
        self.curve = None if weights.curve is None else weights.curve.to(device)
        self.activation, self.gated = config.mlp.activation, config.mlp.gated
        self.cut = NormalDist().inv_cdf(sparsity) if sparsity else None
        self.limit = limit

    @property
    def nbytes(self) -> int:
        return self.up.nbytes + self.down.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return run_mlp(self, x, self.activation, self.gated, self.curve, self.cut, self.limit)


class Experts:
    """A mixture of experts."""

    def __init__(
        self, config: ModelConfig, layer: LayerConfig, weights: ExpertsWeights, dtype: torch.dtype, device: torch.device
    ) -> None:
        assert config.experts is not None
        self.config, self.activation, self.layer = config.experts, config.mlp.activation, layer
        self.held: Tensor | None = None
        """What they gave the latest rows that is yet to be added (``LayerConfig.delays``)."""
        self.called = 0
        """Distinct experts that the latest rows called."""
        # Which experts are called is decided in float32.
        self.router = Linear(weights.router, torch.float32, device)
        self.experts = [Mlp(config, expert, dtype, device) for expert in weights.experts]
        self.correction = None if weights.correction is None else weights.correction.to(device)
        self.shared = None if weights.shared is None else Mlp(config, weights.shared, dtype, device)
        self.shared_gate = None if weights.shared_gate is None else Linear(weights.shared_gate, dtype, device)
        self.router_norm = None if weights.router_norm is None else Norm.of(config, weights.router_norm, device)
        self.own_scales = None if weights.own_scales is None else weights.own_scales.to(device)
        self.table = None if weights.table is None else weights.table.to(device)

    @property
    def nbytes(self) -> int:
        parts = [self.router, *self.experts, *(part for part in (self.shared, self.shared_gate) if part is not None)]
        return sum(part.nbytes for part in parts)

    def __call__(self, x: Tensor, routed: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        limits = self.layer.cuts(self.layer.expert_limit), self.layer.cuts(self.layer.mlp_limit)
        mixed, shared, self.called = run_experts(self.config, self, x, self.activation, routed, limits, tokens)
        if self.layer.delays:
            self.held, mixed = mixed, torch.zeros_like(mixed)
        return mixed if shared is None else mixed + shared


class MlpAndExperts:
    """Both, each between norms of its own, added up."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        weights: MlpAndExpertsWeights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.mlp = Mlp(config, weights.mlp, dtype, device)
        self.experts = Experts(config, layer, weights.experts, dtype, device)
        self.mlp_norm, self.mlp_post_norm, self.experts_norm, self.experts_post_norm = (
            Norm.of(config, norm, device)
            for norm in (weights.mlp_norm, weights.mlp_post_norm, weights.experts_norm, weights.experts_post_norm)
        )

    @property
    def called(self) -> int:
        """As ``Experts.called``."""
        return self.experts.called

    @property
    def nbytes(self) -> int:
        return self.mlp.nbytes + self.experts.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        dense = self.mlp_post_norm(self.mlp(self.mlp_norm(x)))
        return dense + self.experts_post_norm(self.experts(self.experts_norm(x), routed=x))
