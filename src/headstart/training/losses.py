"""How far a draft is from its target: losses on logits, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

LossName = Literal["ce", "tv", "lk"]
RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Draft logits and target probabilities, both [row, draft vocab] -> [row]."""


def soft_cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """[row] -sum p log q: least where q = p; for drafts of best guesses."""
    return -(target_probs * logits.log_softmax(-1)).sum(-1)


def total_variation(logits: Tensor, target_probs: Tensor) -> Tensor:
    """[row] 1 - sum min(p, q): the rate at which a sampled draft is rejected (Leviathan et al. 2023, section 3.2)."""
    accepted: Tensor = torch.minimum(logits.softmax(-1), target_probs).sum(-1)
    return 1 - accepted


def kl_then_acceptance(logits: Tensor, target_probs: Tensor) -> Tensor:
    """[row] w KL(p, q) + (1 - w) (1 - acceptance) with w = exp(-3 acceptance), held fixed.

    Total variation alone has next to no gradient where a draft knows nothing yet; KL carries it to where acceptance
    counts (methods-trained, section 5).
    """
    log_q = logits.log_softmax(-1)
    entropy = torch.special.entr(target_probs).sum(-1)
    kl = -(target_probs * log_q).sum(-1) - entropy
    rejected = 1 - torch.minimum(log_q.exp(), target_probs).sum(-1)
    weight = torch.exp(-3 * (1 - rejected)).detach()
    loss: Tensor = weight * kl + (1 - weight) * rejected
    return loss


ROW_LOSSES: dict[LossName, RowLoss] = {
    "ce": soft_cross_entropy,
    "tv": total_variation,
    "lk": kl_then_acceptance,
}
