"""Channel parts of a pass: what a layer does with every row by itself."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from headstart.backends.torch.linear import Linear
from headstart.layers.experts import run_experts
from headstart.layers.layer import run_mlp
from headstart.models.config import ModelConfig
from headstart.models.weights import ExpertsWeights, MlpWeights


class Channel(Protocol):
    """[row, hidden] -> [row, hidden]."""

    @property
    def nbytes(self) -> int:
        """Of its matrices."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...


def channel_of(
    config: ModelConfig, weights: MlpWeights | ExpertsWeights, dtype: torch.dtype, device: torch.device
) -> Channel:
    """What computes a channel part of this kind."""
    if isinstance(weights, ExpertsWeights):
        return Experts(config, weights, dtype, device)
    return Mlp(config, weights, dtype, device)


class Mlp:
    """A dense channel part."""

    def __init__(self, config: ModelConfig, weights: MlpWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.up, self.down = Linear(weights.up, dtype, device), Linear(weights.down, dtype, device)
        self.curve = None if weights.curve is None else weights.curve.to(device)
        self.activation, self.gated = config.activation, config.gated_mlp

    @property
    def nbytes(self) -> int:
        return self.up.nbytes + self.down.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return run_mlp(self, x, self.activation, self.gated, self.curve)


class Experts:
    """A mixture of experts."""

    def __init__(self, config: ModelConfig, weights: ExpertsWeights, dtype: torch.dtype, device: torch.device) -> None:
        assert config.experts is not None
        self.config, self.activation = config.experts, config.activation
        self.called = 0
        """Distinct experts that the latest rows called."""
        # Which experts are called is decided in float32.
        self.router = Linear(weights.router, torch.float32, device)
        self.experts = [Mlp(config, expert, dtype, device) for expert in weights.experts]
        self.correction = None if weights.correction is None else weights.correction.to(device)
        self.shared = None if weights.shared is None else Mlp(config, weights.shared, dtype, device)
        self.shared_gate = None if weights.shared_gate is None else Linear(weights.shared_gate, dtype, device)

    @property
    def nbytes(self) -> int:
        parts = [self.router, *self.experts, *(part for part in (self.shared, self.shared_gate) if part is not None)]
        return sum(part.nbytes for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        mixed, self.called = run_experts(self.config, self, x, self.activation)
        return mixed
