"""The lab page's "Break it": the exact rule beside biased ones on a toy law over six words."""

from __future__ import annotations

from typing import Any

import numpy as np

from headstart_lab.theory import biased_rules
from headstart_lab.theory import formulas as theory

TRIALS = 200_000
_WORDS = ("practise", "read", "ask", "teach", "fail", "listen")
_TARGET = np.array([0.34, 0.22, 0.16, 0.12, 0.10, 0.06])
_STRANGER = np.array([0.05, 0.12, 0.08, 0.35, 0.10, 0.30])
"""The law of a draft that knows nothing about the target."""
_CHECKPOINTS = 48
_DIGITS = 5
_LIKENESSES = 10


def rules_at_work(likeness: float, trials: int = TRIALS, seed: int = 0) -> dict[str, Any]:
    """Each rule's histograms and their distance from the target as trials add up, as plain values.

    Args:
        likeness: how well the draft knows the target, in [0, 1].
        trials: words that each rule says.
        seed: of the draws.
    """
    target, draft = _TARGET, likeness * _TARGET + (1 - likeness) * _STRANGER
    checkpoints = np.unique(np.geomspace(10, trials, _CHECKPOINTS).astype(int)).tolist()
    rules = []
    for rule in biased_rules.Rule:
        seen = biased_rules.simulate(rule, target, draft, checkpoints, seed)
        law = biased_rules.law(rule, target, draft)
        rules.append(
            {
                "rule": rule.value,
                "distances": _rounded(seen.distances),
                "histograms": seen.histograms.round(_DIGITS).tolist(),
                "bias": float(theory.divergence(law, target)),
            }
        )
    return {
        "words": _WORDS,
        "target": target.tolist(),
        "alpha": float(theory.acceptance(target, draft)),
        "trials": checkpoints,
        "chance": _rounded([biased_rules.chance_distance(target, count) for count in checkpoints]),
        "rules": rules,
    }


def rules_beforehand() -> list[dict[str, Any]]:
    """[likeness in tenths] what a page shows that has no server to ask."""
    return [rules_at_work(place / _LIKENESSES) for place in range(_LIKENESSES + 1)]


def _rounded(distances: Any) -> list[float]:
    rounded: list[float] = np.round(distances, _DIGITS).tolist()
    return rounded
