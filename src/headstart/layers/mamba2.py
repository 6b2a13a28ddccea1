"""Mamba-2 in PyTorch, row by row (Dao and Gu 2024, "Transformers are SSMs", section 7).

A head's state decays by a step that the row chooses, takes up what the row writes, and is read. Rows are computed one
after the other, so that nothing depends on how a text is cut into chunks.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.layers.convolution import ConvolutionParts, convolve
from headstart.layers.recurrence import LookBack, Recur
from headstart.models.state_config import Mamba2Config


class Mamba2Parts(ConvolutionParts, Protocol):
    """By the names of ``Mamba2Weights``; the kernel's channels are those that are convolved."""

    @property
    def step_bias(self) -> Tensor: ...
    @property
    def log_decay(self) -> Tensor: ...
    @property
    def skip(self) -> Tensor: ...
    @property
    def norm(self) -> Tensor | None:
        """float32 [inner]"""
        ...


def run_mamba2(config: Mamba2Config, parts: Mamba2Parts, x: Tensor, look_back: LookBack, recur: Recur) -> Tensor:
    """[row, hidden] -> [row, hidden]. States are float32 [row, head, head_dim, state_size]."""
    rows, groups, size = len(x), config.groups, config.state_size
    gate, read, step = torch.split(parts.input(x), [config.inner, config.convolved, config.heads], dim=-1)
    mixed = F.silu(convolve(look_back(read), parts.kernel, parts.kernel_bias))
    written, where_to, from_where = torch.split(mixed, [config.inner, groups * size, groups * size], dim=-1)
    step = F.softplus(step.float() + parts.step_bias).clamp(config.least_step, config.most_step)
    decay = torch.exp(-step * parts.log_decay.exp()).view(rows, groups, -1, 1, 1)
    written = written.view(rows, groups, -1, config.head_dim)
    scaled = (written * step.view(rows, groups, -1, 1))[..., None]
    where_to = where_to.view(rows, groups, 1, 1, size)
    from_where = from_where.view(rows, groups, 1, size, 1)

    def advance(states: Tensor, these: Tensor | slice) -> tuple[Tensor, Tensor]:
        by_group = states.view(len(states), groups, -1, config.head_dim, size)
        after = torch.addcmul(by_group * decay[these], scaled[these], where_to[these])
        return after.view(states.shape), torch.matmul(after, from_where[these])[..., 0]

    given = recur(advance) + written * parts.skip.view(groups, -1, 1)
    given = given.reshape(rows, config.inner)
    if config.norm == "before_gate":
        given = _normed(config, parts, given)
    given = given * F.silu(gate.float())
    if config.norm == "after_gate":
        given = _normed(config, parts, given)
    return parts.output(given.to(x.dtype))


def _normed(config: Mamba2Config, parts: Mamba2Parts, given: Tensor) -> Tensor:
    """Each group by itself."""
    assert parts.norm is not None
    by_group = given.view(len(given), config.groups, -1)
    return F.rms_norm(by_group, by_group.shape[-1:], None, config.norm_eps).view(given.shape) * parts.norm
