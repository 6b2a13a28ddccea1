"""Latent attention in PyTorch (DeepSeek-V2, section 2.1): keys and values of all heads from one small state of a row.

Passes keep that state alone. A head's queries are taken into its space, so that all heads read the same "key", the
state and the key that they share; what they see of it is taken back into their own values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from headstart.models.config import IndexerConfig, LatentConfig
from headstart.models.layers.layer import Operation


class IndexRows(NamedTuple):
    """What an indexer makes of rows: queries [row, head, dim] and keys [row, dim], not rotated, with their weights in
    mixtures, where there are any, [row, dim] or [row, 0]; and what heads count for [row, head]."""

    queries: Tensor
    keys: Tensor
    weights: Tensor
    shares: Tensor


AttendState = Callable[[Tensor, Tensor, IndexRows | None], Tensor]
"""Queries [row, head, kv_rank + rope_dim] and the rows' states [row, kv_rank + rope_dim], neither of them rotated in
their last rope_dim -> what each head sees of the states' first kv_rank, [row, head, kv_rank]."""


class LatentParts(Protocol):
    """By the names of ``LatentWeights``."""

    @property
    def down(self) -> Operation: ...
    @property
    def q_norm(self) -> Operation | None: ...
    @property
    def q_up(self) -> Operation | None: ...
    @property
    def kv_norm(self) -> Operation: ...
    @property
    def key_up(self) -> Tensor:
        """[head, kv_rank, plain_dim]"""
        ...

    @property
    def value_up(self) -> Tensor:
        """[head, value_dim, kv_rank]"""
        ...

    @property
    def output(self) -> Operation: ...
    @property
    def indexer(self) -> IndexerConfig | None: ...
    @property
    def gate(self) -> Operation | None: ...


def run_latent(config: LatentConfig, parts: LatentParts, x: Tensor, attend: AttendState) -> Tensor:
    """[row, hidden] -> [row, hidden]."""
    heads = len(parts.key_up)
    size, index = heads * (config.plain_dim + config.rope_dim), parts.indexer
    of_index = () if index is None else (index.dim, index.weights, index.heads)
    sizes = [config.kv_rank, config.rope_dim, *of_index]
    lowered = parts.down(x)
    queries, state, shared_key, *made = torch.split(lowered, [lowered.shape[-1] - sum(sizes), *sizes], dim=-1)
    if parts.q_norm is not None and parts.q_up is not None:
        queries = parts.q_up(parts.q_norm(queries))
    rows = None if index is None else IndexRows(queries[:, size:].view(len(x), index.heads, -1), *made)
    queries = queries[:, :size].reshape(len(x), heads, -1)
    plain, turning = torch.split(queries, [config.plain_dim, config.rope_dim], dim=-1)
    taken = torch.einsum("rhd,hkd->rhk", plain, parts.key_up)
    states = torch.cat((parts.kv_norm(state), shared_key), dim=-1)
    seen = attend(torch.cat((taken, turning), dim=-1), states, rows)
    values = torch.einsum("rhk,hvk->rhv", seen, parts.value_up)
    if parts.gate is not None:
        values = values * parts.gate(x).float().sigmoid().to(x.dtype).view(len(x), heads, -1)
    return parts.output(values.reshape(len(x), -1))
