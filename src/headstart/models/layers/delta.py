"""The gated delta rule in PyTorch, row by row (Yang et al. 2025, "Gated Delta Networks", equation 10) and scanned.

A head's state maps keys to values. It decays by a step that the row chooses; then the value that it has for the row's
key is moved towards the row's own, and it is read at the row's query.

Scanned (section 3.3, the "WY" form): how far a row moves the state depends on what the piece's rows before it have
moved. That is a triangular system, the same whatever the state before the piece is; its solution is linear in that
state.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.layers.convolution import convolve
from headstart.models.layers.layer import Operation
from headstart.models.layers.recurrence import PIECE, LookBack, Pieces, Recur, ScanStep, decays_between
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
    values = values.reshape(rows, heads, config.value_dim)
    log_decay = -parts.log_decay.exp() * F.softplus(step.float() + parts.step_bias)
    decay, share = torch.exp(log_decay), share.float().sigmoid()

    def advance(states: Tensor, these: Tensor | slice) -> tuple[Tensor, Tensor]:
        after = states * decay[these][..., None, None]
        key = keys[these]
        change = (values[these][:, :, None] - torch.matmul(key[:, :, None], after)) * share[these][..., None, None]
        after = torch.addcmul(after, key[..., None], change)
        return after, torch.matmul(queries[these][:, :, None], after)[:, :, 0]

    def scan(pieces: Pieces) -> ScanStep:
        by_head = (pieces.cut(each).transpose(1, 2) for each in (queries, keys, values))
        return _scan(*by_head, *(pieces.cut_real(each).transpose(1, 2) for each in (log_decay, share)))

    normed = F.rms_norm(recur(advance, scan), (config.value_dim,), parts.norm, config.norm_eps)
    gated = normed * F.silu(gate.float().view(rows, heads, config.value_dim))
    return parts.output(gated.reshape(rows, config.values).to(x.dtype))


def _scan(queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, share: Tensor) -> ScanStep:
    """Of pieces: queries and keys [piece, head, PIECE, key_dim], values [.., value_dim], the others [.., PIECE]."""
    decayed, between = decays_between(log_decay)
    decayed, share = decayed[..., None], share[..., None]
    # How far each row moves the state: towards its value, and from what it would find if the piece began with it.
    wanted = torch.cat((values * share, keys * (decayed * share)), dim=-1)
    held = torch.matmul(keys, keys.mT) * between * share
    unit = torch.eye(PIECE, dtype=held.dtype, device=held.device)
    inverse = torch.linalg.solve_triangular(held, unit, upper=False, unitriangular=True)
    towards, found = torch.split(torch.matmul(inverse, wanted), [values.shape[-1], keys.shape[-1]], dim=-1)
    seen = torch.matmul(queries, keys.mT) * between
    given = torch.matmul(seen, towards)
    read = queries * decayed - torch.matmul(seen, found)
    written = (keys * between[..., -1, :, None]).mT
    kept = decayed[..., -1:, :]

    def advance(states: Tensor, these: slice) -> tuple[Tensor, Tensor]:
        moved = _plus_product(towards[these], -1, found[these], states)
        out = _plus_product(given[these], 1, read[these], states)
        return _plus_product(states * kept[these], 1, written[these], moved), out.transpose(1, 2)

    return advance


def _plus_product(base: Tensor, sign: int, left: Tensor, right: Tensor) -> Tensor:
    """Of matrices [piece, head, ...], in one operation."""
    flat = (each.flatten(0, 1) for each in (base, left, right))
    return torch.baddbmm(*flat, alpha=sign).view(base.shape)


def _units(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _UNIT_EPS)
