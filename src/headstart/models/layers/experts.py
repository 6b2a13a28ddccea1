"""A mixture of experts in PyTorch: which experts a row goes through, and what they make of it.

Rows are grouped by expert, so that the weights of an expert are read once a pass. What a row gets is added up in the
order of the experts' numbers, whichever other rows call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.experts_config import ExpertsConfig
from headstart.models.layers.layer import MlpParts, Operation, run_mlp

_CLAMPED_SLOPE = 1.702
_SPARSEMIXER_JITTER = 0.01
"""Phi-3.5-MoE's: an expert counts as near the best one where its logit is within twice this share of it."""


class ExpertsParts(Protocol):
    """By the names of ``ExpertsWeights``."""

    @property
    def router(self) -> Operation: ...
    @property
    def experts(self) -> Sequence[MlpParts]: ...
    @property
    def correction(self) -> Tensor | None: ...
    @property
    def shared(self) -> MlpParts | None: ...
    @property
    def shared_gate(self) -> Operation | None: ...
    @property
    def router_norm(self) -> Operation | None: ...
    @property
    def own_scales(self) -> Tensor | None: ...
    @property
    def table(self) -> Tensor | None: ...


def run_experts(
    config: ExpertsConfig,
    parts: ExpertsParts,
    x: Tensor,
    activation: str,
    routed: Tensor | None = None,
    limits: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None),
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, int]:
    """What rows [..., hidden] get of the experts that they call, what of the one that all rows go through, if there is
    one, and how many distinct ones they call; ``routed``: what the router reads in place of ``x``; ``limits``: of the
    former, and of the latter (``LayerConfig.cuts``); ``tokens`` [row]: where a table says which experts they call."""
    rows, (limit, limit_of_shared) = x.reshape(-1, x.shape[-1]), limits
    told = (x if routed is None else routed).reshape(rows.shape).float()
    told = told if parts.router_norm is None else parts.router_norm(told)
    given = None if parts.table is None or tokens is None else parts.table[tokens]
    chosen, weights = choose_experts(config, parts.router(told), parts.correction, given)
    if parts.own_scales is not None:
        weights = weights * parts.own_scales[chosen]
    mixed = torch.zeros_like(rows)
    called = torch.unique(chosen).tolist()
    for expert in called:
        callers, rank = (chosen == expert).nonzero(as_tuple=True)
        weight = weights[callers, rank, None].to(rows.dtype)
        read = rows[callers]
        if config.scales_input:
            made = _run_one(config, parts.experts[expert], read * weight, activation, limit)
            mixed = mixed.index_add(0, callers, made)
        else:
            made = read if expert >= config.count else _run_one(config, parts.experts[expert], read, activation, limit)
            mixed = mixed.index_add(0, callers, made * weight)
    shared = None
    if parts.shared is not None:
        shared = run_mlp(parts.shared, rows, activation, config.gated, limit=limit_of_shared)
        if parts.shared_gate is not None:
            shared = shared * parts.shared_gate(rows).sigmoid()
        shared = shared.view(x.shape)
    return mixed.view(x.shape), shared, sum(expert < config.count for expert in called)


def choose_experts(
    config: ExpertsConfig, logits: Tensor, correction: Tensor | None, given: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The router's float32 logits [row, expert] -> the experts of each row, unless they are ``given``, and their
    weights, both [row, rank]."""
    if config.score == "sparsemixer":
        return _sparsemixer(config, logits)
    # PyTorch's sigmoid has other last bits at the end of a tensor; from float64 they are the same.
    if config.score == "sqrtsoftplus":
        scores = F.softplus(logits.double()).sqrt().float()
    else:
        scores = logits.double().sigmoid().float() if config.score == "sigmoid" else logits.softmax(-1)
    ranked = scores if correction is None else scores + correction
    if config.groups > 1:
        ranked = ranked.masked_fill(~_in_good_groups(config, ranked), -torch.inf)
    chosen = ranked.topk(config.used, dim=-1).indices if given is None else given
    weights = scores.gather(-1, chosen)
    if config.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * config.scale


def _in_good_groups(config: ExpertsConfig, ranked: Tensor) -> Tensor:
    """bool [row, expert]"""
    groups = ranked.view(len(ranked), config.groups, -1)
    good = groups.amax(-1) if config.group_score == "best" else groups.topk(2, dim=-1).values.sum(-1)
    kept = torch.zeros_like(good, dtype=torch.bool)
    kept.scatter_(1, good.topk(config.groups_used, dim=-1).indices, True)
    return kept.repeat_interleave(groups.shape[-1], dim=1)


def _sparsemixer(config: ExpertsConfig, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each next expert is the best of those left, weighed among those that are near it (Liu et al. 2023, as evaluated
    by transformers' models/phimoe)."""
    chosen, weights, left = list[Tensor](), list[Tensor](), logits
    for _ in range(config.used):
        best, expert = left.max(-1, keepdim=True)
        factor = torch.maximum(logits.abs(), best)
        far = (best - logits) / factor > 2 * _SPARSEMIXER_JITTER
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, expert))
        chosen.append(expert)
        left = left.scatter(-1, expert, -torch.inf)
    return torch.cat(chosen, -1), torch.cat(weights, -1)


def _run_one(
    config: ExpertsConfig, expert: MlpParts, rows: Tensor, activation: str, limit: tuple[float, float] | None
) -> Tensor:
    if config.clamp is None:
        return run_mlp(expert, rows, activation, config.gated, limit=limit)
    gate, up = expert.up(rows).chunk(2, dim=-1)
    gate, up = gate.clamp(max=config.clamp), up.clamp(-config.clamp, config.clamp)
    return expert.down((up + 1) * gate * (gate * _CLAMPED_SLOPE).sigmoid())
