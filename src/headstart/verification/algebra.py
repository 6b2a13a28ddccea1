"""The arithmetic of the rules, shared by all of them. p and q: target and draft law at a node, float64 [vocab]."""

from __future__ import annotations

from torch import Tensor


def accepts(uniform: float, target_prob: float, draft_prob: float, lenience: float = 1.0) -> bool:
    """Whether a draw x from q is kept: with probability min(1, p(x) / q(x)), Leviathan et al. 2023, Algorithm 1.

    Strict, so that p(x) = 0 never passes. ``lenience`` l < 1 keeps it with min(1, p(x) / (l q(x))) (appendix A.5),
    which is lossy.
    """
    return uniform * (lenience * draft_prob) < target_prob


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """The law left after a draw from q was rejected: norm(max(p - q, 0)), float64 [vocab].

    p itself where nothing is left, which only rounding can bring about (p <= q everywhere means p = q, and then no
    draw is rejected).
    """
    left = (target - draft).clamp_(min=0)
    mass = float(left.sum())
    return left.div_(mass) if mass > 0 else target


def without(law: Tensor, token: int) -> Tensor:
    """``law`` given that it is not ``token``: float64 [vocab]; all zero where nothing else is possible."""
    rest = law.clone()
    rest[token] = 0
    mass = float(rest.sum())
    return rest.div_(mass) if mass > 0 else rest


def block_weight(weight: float, target_prob: float, draft_prob: float) -> float:
    """w_i = min(1, w_{i-1} p(x_i) / q(x_i)): how much of the path's mass the target grants (Sun et al. 2024).

    0 for a token that its own law forbids.
    """
    return min(1.0, weight * target_prob / draft_prob) if draft_prob > 0 else 0.0


def block_acceptance(weight: float, target: Tensor, draft: Tensor) -> float:
    """h_i = S / (S + 1 - w_i), S = sum(max(w_i p - q, 0)) over the laws after x_i (Sun et al. 2024, Algorithm 2)."""
    surplus = float((weight * target - draft).clamp_(min=0).sum())
    whole = surplus + 1.0 - weight
    return surplus / whole if whole > 0 else 1.0
