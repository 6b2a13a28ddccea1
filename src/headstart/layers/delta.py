"""The gated delta rule in PyTorch, row by row (Yang et al. 2025, "Gated Delta Networks", equation 10).

A head's state maps keys to values. It decays by a step that the row chooses; then the value that it has for the row's
key is moved towards the row's own, and it is read at the row's query.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.layers.convolution import convolve
from headstart.layers.layer import Operation
from headstart.layers.recurrence import LookBack, Recur
from headstart.models.state_config import DeltaConfig

_UNIT_EPS = 1e-6
"""Under the root where keys and queries are made unit vectors (transformers, models/qwen3_next)."""


class DeltaParts(Protocol):
    """By the names of ``DeltaWeights``."""

    @property
    def input(self) -> Operation: ...
    @property
    def rates(self) -> Operation: ...
    @property
    def kernel(self) -> Tensor:
        """float32 [length, convolved]"""
        ...

    @property
    def step_bias(self) -> Tensor: ...
    @property
    def log_decay(self) -> Tensor: ...
    @property
    def norm(self) -> Tensor:
        """float32 [value_dim]"""
        ...

    @property
    def output(self) -> Operation: ...


def run_delta(config: DeltaConfig, parts: DeltaParts, x: Tensor, look_back: LookBack, recur: Recur) -> Tensor:
    """[row, hidden] -> [row, hidden]. States are float32 [row, value_head, key_dim, value_dim]."""
    rows, heads = len(x), config.value_heads
    read, gate = torch.split(parts.input(x), [config.convolved, config.values], dim=-1)
    share, step = parts.rates(x).chunk(2, dim=-1)
    mixed = F.silu(convolve(look_back(read), parts.kernel, None))
    queries, keys, values = torch.split(mixed, [config.keys, config.keys, config.values], dim=-1)
    queries, keys = (_units(each.reshape(rows, config.key_heads, config.key_dim)) for each in (queries, keys))
    queries = queries * config.key_dim**-0.5
    shared = heads // config.key_heads
    if config.tiled:
        queries, keys = (each.repeat(1, shared, 1) for each in (queries, keys))
    else:
        queries, keys = (each.repeat_interleave(shared, dim=1) for each in (queries, keys))
    values = values.reshape(rows, heads, 1, config.value_dim)
    decay = torch.exp(-parts.log_decay.exp() * F.softplus(step.float() + parts.step_bias))[..., None, None]
    share = share.float().sigmoid()[..., None, None]

    def advance(states: Tensor, these: Tensor | slice) -> tuple[Tensor, Tensor]:
        after = states * decay[these]
        key = keys[these]
        change = (values[these] - torch.matmul(key[:, :, None], after)) * share[these]
        after = torch.addcmul(after, key[..., None], change)
        return after, torch.matmul(queries[these][:, :, None], after)[:, :, 0]

    normed = F.rms_norm(recur(advance), (config.value_dim,), parts.norm, config.norm_eps)
    gated = normed * F.silu(gate.float().view(rows, heads, config.value_dim))
    return parts.output(gated.reshape(rows, config.values).to(x.dtype))


def _units(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _UNIT_EPS)
