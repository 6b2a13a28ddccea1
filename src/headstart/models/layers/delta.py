"""The gated delta rule in PyTorch, row by row (Yang et al. 2025, "Gated Delta Networks", equation 10) and scanned.

A head's state maps keys to values. It decays by a step that the row chooses; then the value that it has for the row's
key is moved towards the row's own, and it is read at the row's query.

Scanned (section 3.3, the "WY" form): how far a row moves the state depends on what the piece's rows before it have
moved. That is a triangular system, the same whatever the state before the piece is; its solution is linear in that
state.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    def ups(self) -> Sequence[Operation]: ...
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
    projected = parts.input(x)
    read, rest = projected[:, : config.convolved], projected[:, config.convolved :]
    if not config.by_key:
        gate = rest
        share, step = parts.rates(x).chunk(2, dim=-1)
    else:
        gate, step = torch.split(rest, [config.rank or config.values, config.rank or config.keys], dim=-1)
        if config.rank is not None:
            gate, step = (up(each) for up, each in zip(parts.ups, (gate, step), strict=True))
        share = parts.rates(x)
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
    log_decay = _log_decay(config, parts, step.float() + parts.step_bias).view(rows, heads, -1)
    decay, share = torch.exp(log_decay), share.float().sigmoid()

    def advance(states: Tensor, these: Tensor | slice) -> tuple[Tensor, Tensor]:
        after = states * decay[these][..., None]
        key = keys[these]
        change = (values[these][:, :, None] - torch.matmul(key[:, :, None], after)) * share[these][..., None, None]
        after = torch.addcmul(after, key[..., None], change)
        return after, torch.matmul(queries[these][:, :, None], after)[:, :, 0]

    def scan(pieces: Pieces) -> ScanStep:
        real = pieces.cut_real(log_decay.flatten(1)).view(-1, PIECE, *log_decay.shape[1:])
        of_pieces = (*(pieces.cut(each) for each in (queries, keys, values)), real, pieces.cut_real(share))
        return _scan(*(each.transpose(1, 2) for each in of_pieces))

    normed = F.rms_norm(recur(advance, scan), (config.value_dim,), parts.norm, config.norm_eps)
    opened = (torch.sigmoid if config.by_key else F.silu)(gate.float().view(rows, heads, config.value_dim))
    gated = normed * opened
    return parts.output(gated.reshape(rows, config.values).to(x.dtype))


def _log_decay(config: DeltaConfig, parts: DeltaParts, step: Tensor) -> Tensor:
    """float32 [row, decays], at most 0."""
    if config.least:
        return config.least * torch.sigmoid(parts.log_decay.exp() * step)
    return -parts.log_decay.exp() * F.softplus(step)


def _scan(queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, share: Tensor) -> ScanStep:
    """Of pieces: queries and keys [piece, head, PIECE, key_dim], values [.., value_dim], shares [.., PIECE], logarithms
    of decays [.., PIECE, key_dim] or, of all of a key's numbers, [.., PIECE, 1]."""
    share = share[..., None]
    if log_decay.shape[-1] == 1:
        decayed, between = decays_between(log_decay[..., 0])
        decayed, left = decayed[..., None], between[..., -1, :, None]
        held, seen = (torch.matmul(each, keys.mT) * between for each in (keys, queries))
    else:
        decayed, left, (held, seen) = _by_key(log_decay, keys, (keys, queries))
    # How far each row moves the state: towards its value, and from what it would find if the piece began with it.
    wanted = torch.cat((values * share, keys * (decayed * share)), dim=-1)
    held = held * share
    unit = torch.eye(PIECE, dtype=held.dtype, device=held.device)
    inverse = torch.linalg.solve_triangular(held, unit, upper=False, unitriangular=True)
    towards, found = torch.split(torch.matmul(inverse, wanted), [values.shape[-1], keys.shape[-1]], dim=-1)
    given = torch.matmul(seen, towards)
    read = queries * decayed - torch.matmul(seen, found)
    written = (keys * left).mT
    kept = decayed[..., -1:, :].mT

    def advance(states: Tensor, these: slice) -> tuple[Tensor, Tensor]:
        moved = _plus_product(towards[these], -1, found[these], states)
        out = _plus_product(given[these], 1, read[these], states)
        return _plus_product(states * kept[these], 1, written[these], moved), out.transpose(1, 2)

    return advance


def _by_key(log_decay: Tensor, keys: Tensor, readers: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Where a key's numbers decay each by itself.

    Returns:
        What is left of the state before the piece after each row, of what each row writes after the last one
        [piece, head, PIECE, key_dim], and the products of readers (rows) and keys (columns) as these have decayed until
        then, 0 where the key comes later [piece, head, PIECE, PIECE].
    """
    products = [keys.new_zeros(*keys.shape[:-1], PIECE) for _ in readers]
    later, left = log_decay.clone(), torch.empty_like(keys)
    for row in range(PIECE):
        # Sums of the rows between alone, as in ``decays_between``.
        later[..., row, :] = 0
        since = later[..., row:, :].cumsum(-2).exp_()
        left[..., row, :] = since[..., -1, :]
        now = keys[..., row, None, :] * since
        for product, reader in zip(products, readers, strict=True):
            product[..., row:, row] = (reader[..., row:, :] * now).sum(-1)
    return log_decay.cumsum(-2).exp_(), left, products


def _plus_product(base: Tensor, sign: int, left: Tensor, right: Tensor) -> Tensor:
    """Of matrices [piece, head, ...], in one operation."""
    flat = (each.flatten(0, 1) for each in (base, left, right))
    return torch.baddbmm(*flat, alpha=sign).view(base.shape)


def _units(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _UNIT_EPS)
