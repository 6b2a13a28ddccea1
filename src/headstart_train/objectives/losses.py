"""How far a draft is from its target: losses on logits, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headstart_train.choices import LossName

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
    counts.
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
    "dpace": soft_cross_entropy,
}
"""By name; "dpace" also weighs the guesses of a block by ``block_weights``."""
_SMOOTHING = 0.5


def block_weights(accepted: Tensor, exists: Tensor) -> Tensor:
    """What each guess of a block adds to its length, in place of a fixed decay (D-PACE, arXiv:2605.18810, section 3,
    equations 7 and 8).

    The paper's confidence is what the draft gives the text's token; here it is what both laws have in common.

    Args:
        accepted: [..., depth] probability that a guess is accepted if those before it were.
        exists: bool [..., depth] whether the text goes on so far.

    Returns:
        [..., depth] over all guesses at or behind each, the product of all that lead there, each drawn halfway to one.
    """
    reached = ((1 - _SMOOTHING) * accepted + _SMOOTHING).cumprod(-1) * exists
    return reached.flip(-1).cumsum(-1).flip(-1)


_ROWS = 512
"""States whose logits are held at a time on a processor."""
_DEVICE_ROWS = 8192
"""The same on an accelerator, where small products are a waste."""


def sum_by_rows(
    loss: Callable[[Tensor, slice], Tensor], states: Tensor, parameters: Sequence[Tensor], made: Sequence[Tensor] = ()
) -> Tensor:
    """``loss(states[rows], rows)`` summed over slices of rows, with the gradients of ``states`` and ``parameters``.

    Each slice's gradients are taken at once, so that its logits are gone before the next one's are made: on a CPU
    they never leave the caches, anywhere they take a fraction of the memory.

    Args:
        loss: scalar, a sum over the rows it is given.
        states: [row, ...].
        parameters: all that ``loss`` learns besides.
        made: what the last of these are copies of, where they are no parameters but made of such: it gets their
            gradients.
    """
    outer = (*parameters[: len(parameters) - len(made)], *made)
    summed: Tensor = _SumByRows.apply(loss, states, tuple(parameters), *outer)  # type: ignore[no-untyped-call]
    return summed


class _SumByRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        loss: Callable[[Tensor, slice], Tensor],
        states: Tensor,
        parameters: tuple[Tensor, ...],
        *outer: Tensor,
    ) -> Tensor:
        total = torch.zeros((), device=states.device)
        of_states = torch.zeros_like(states)
        of_parameters: list[Tensor | None] = [None] * len(parameters)
        together = _ROWS if states.device.type == "cpu" else _DEVICE_ROWS
        for first in range(0, len(states), together):
            rows = slice(first, min(first + together, len(states)))
            with torch.enable_grad():
                part = states[rows].detach().requires_grad_()
                summed = loss(part, rows)
                of_part, *others = torch.autograd.grad(summed, (part, *parameters), allow_unused=True)
            total += summed.detach()
            if of_part is not None:
                of_states[rows] = of_part
            for i, gradient in enumerate(others):
                if gradient is not None:
                    known = of_parameters[i]
                    of_parameters[i] = gradient if known is None else known.add_(gradient)
        ctx.gradients = (of_states, *of_parameters)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = upstream
        of_states, *of_parameters = (None if gradient is None else gradient * factor for gradient in ctx.gradients)
        return None, of_states, None, *of_parameters
