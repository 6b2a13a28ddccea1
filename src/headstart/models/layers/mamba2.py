"""Mamba-2 in PyTorch, row by row and scanned (Dao and Gu 2024, "Transformers are SSMs", sections 6 and 7).

A head's state decays by a step that the row chooses, takes up what the row writes, and is read. Scanned, a piece's rows
see each other as those of attention do, weighed by what the decays have left, and the state before the piece.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.layers.convolution import ConvolutionParts, convolve
from headstart.models.layers.recurrence import LookBack, Pieces, Recur, ScanStep, decays_between
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
    rate = parts.log_decay.exp()
    decay = torch.exp(-step * rate).view(rows, groups, -1, 1, 1)
    written = written.view(rows, groups, -1, config.head_dim)
    scaled = (written * step.view(rows, groups, -1, 1))[..., None]
    where_to = where_to.view(rows, groups, size)
    from_where = from_where.view(rows, groups, size)

    def advance(states: Tensor, these: Tensor | slice) -> tuple[Tensor, Tensor]:
        by_group = states.view(len(states), groups, -1, config.head_dim, size)
        after = torch.addcmul(by_group * decay[these], scaled[these], where_to[these][:, :, None, None])
        return after.view(states.shape), torch.matmul(after, from_where[these][:, :, None, :, None])[..., 0]

    def scan(pieces: Pieces) -> ScanStep:
        steps = pieces.cut_real(step)
        values = pieces.cut(written) * steps.view(*steps.shape[:2], groups, -1, 1)
        by_group = (pieces.cut(each).transpose(1, 2) for each in (where_to, from_where))
        return _scan(values, -(steps * rate), *by_group)

    given = recur(advance, scan) + written * parts.skip.view(groups, -1, 1)
    given = given.reshape(rows, config.inner)
    if config.norm == "before_gate":
        given = _normed(config, parts, given)
    given = given * F.silu(gate.float())
    if config.norm == "after_gate":
        given = _normed(config, parts, given)
    return parts.output(given.to(x.dtype))


def _scan(values: Tensor, log_decay: Tensor, where_to: Tensor, from_where: Tensor) -> ScanStep:
    """Of pieces: values [piece, PIECE, group, head, head_dim], decays [piece, PIECE, head], and
    [piece, group, PIECE, state_size]."""
    pieces, rows, groups, heads, head_dim = values.shape
    values = values.permute(0, 2, 3, 1, 4)
    decayed, between = decays_between(log_decay.transpose(1, 2).reshape(pieces, groups, heads, rows))
    weights = torch.matmul(from_where, where_to.mT)[:, :, None] * between
    given = torch.matmul(weights, values)
    left = values * between[..., -1, :, None]
    taken = torch.matmul(left.mT.reshape(pieces, groups, heads * head_dim, rows), where_to)
    taken = taken.view(pieces, groups * heads, head_dim, -1)
    decayed = decayed[..., None]
    kept = decayed[..., -1:, :].reshape(pieces, groups * heads, 1, 1)

    def advance(states: Tensor, these: slice) -> tuple[Tensor, Tensor]:
        by_group = states.view(len(states), groups, heads * head_dim, -1)
        read = torch.matmul(from_where[these], by_group.mT)
        read = read.view(len(states), groups, rows, heads, head_dim).transpose(2, 3)
        out = torch.addcmul(given[these], decayed[these], read)
        return torch.addcmul(taken[these], states, kept[these]), out.permute(0, 3, 1, 2, 4)

    return advance


def _normed(config: Mamba2Config, parts: Mamba2Parts, given: Tensor) -> Tensor:
    """Each group by itself."""
    assert parts.norm is not None
    by_group = given.view(len(given), config.groups, -1)
    return F.rms_norm(by_group, by_group.shape[-1:], None, config.norm_eps).view(given.shape) * parts.norm
