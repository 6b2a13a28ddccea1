"""The curves of figures 2 to 4 (Leviathan et al. 2023) around a reader's own alpha, gamma and c, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headstart.analysis import theory
from headstart.analysis.exhibits import PAPER_COSTS, PAPER_GAMMAS

MAX_GAMMA = 64
_ALPHAS = [i / 100 for i in range(100)]
"""Up to 0.99: at 1 the best draft has no end."""


def curves(alpha: float, gamma: int, c: float, c_hat: float) -> dict[str, Any]:
    """What ``theory`` says at one point, and along alpha for the paper's values and the reader's own.

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: draft length, 1 to ``MAX_GAMMA``.
        c: time of a draft step over a target pass; c_hat: the same for operations.

    Returns:
        ``alphas`` [99]; ``tokens``, ``best_gamma``, ``speedup`` and ``operations``: lists of lines, each with its
        ``value`` (of gamma, or of c), ``own`` where it is the reader's, and ``y`` [99]; ``point``: all of these at
        alpha itself. The best gamma is looked for up to ``MAX_GAMMA``.
    """
    gammas, costs = sorted({*PAPER_GAMMAS, gamma}), sorted({*PAPER_COSTS, c})
    best = theory.best_gamma(alpha, c, MAX_GAMMA)
    return {
        "alphas": _ALPHAS,
        "tokens": _lines(gammas, gamma, lambda a, g: theory.expected_tokens(a, int(g))),
        "best_gamma": _lines(costs, c, lambda a, cost: theory.best_gamma(a, cost, MAX_GAMMA)),
        "speedup": _lines(gammas, gamma, lambda a, g: theory.walltime_improvement(a, int(g), c)),
        "operations": _lines(gammas, gamma, lambda a, g: theory.operations_increase(a, int(g), c_hat)),
        "point": {
            "tokens": theory.expected_tokens(alpha, gamma),
            "speedup": theory.walltime_improvement(alpha, gamma, c),
            "operations": theory.operations_increase(alpha, gamma, c_hat),
            "best_gamma": best,
            "best_speedup": theory.walltime_improvement(alpha, best, c),
            "can_improve": theory.can_improve(alpha, c),
        },
    }


def _lines(values: list[float] | list[int], own: float, of: Callable[[float, float], float]) -> list[dict[str, Any]]:
    return [{"value": value, "own": value == own, "y": [of(alpha, value) for alpha in _ALPHAS]} for value in values]
