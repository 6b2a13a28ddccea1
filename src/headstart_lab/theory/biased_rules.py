"""What a wrong verification rule does to the law of one token, exactly and by simulation, beside the right rule.

One draft token x ~ q is kept with probability min(1, p(x) / q(x)); what happens then, and with which noise, makes the
difference. p and q are float64 [vocab], each summing to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from headstart_lab.theory.formulas import FloatArray, divergence, residual


class Rule(StrEnum):
    """How a token is verified; all but the first are wrong on purpose."""

    EXACT = "exact"
    """Algorithm 1 (Leviathan et al. 2023): fresh noise for draw and verdict, rejections drawn from the residual."""
    RESAMPLE_TARGET = "resample-target"
    """Rejections drawn from p itself: what q says too often is then said too often."""
    SHARED_NOISE = "shared-noise"
    """The uniform that drew x decides about x, too: whether a token is kept depends on its place in the vocabulary."""


@dataclass(frozen=True)
class Simulation:
    """The histogram of a rule as trials go by."""

    trials: list[int]
    """[checkpoint] trials so far."""
    distances: list[float]
    """[checkpoint] total variation distance (Definition 3.2) between the histogram and p."""
    histograms: FloatArray
    """[checkpoint, vocab] share of each token among the trials so far."""


def law(rule: Rule, p: FloatArray, q: FloatArray) -> FloatArray:
    """[vocab] the law that a rule's token follows: p for the exact one."""
    kept = np.minimum(p, q)
    if rule is Rule.SHARED_NOISE:
        # x is drawn where the uniform lies in [below, below + q); the same uniform keeps it where it is under p / q.
        below = np.cumsum(q) - q
        kept = np.clip(_ratio(p, q) - below, 0.0, q)
    otherwise = p if rule is Rule.RESAMPLE_TARGET else residual(p, q)
    return np.asarray(kept + (1.0 - kept.sum()) * otherwise)


def simulate(rule: Rule, p: FloatArray, q: FloatArray, checkpoints: list[int], seed: int) -> Simulation:
    """Draw, verify and count tokens, ``checkpoints[-1]`` of them; ``checkpoints`` ascend."""
    random = np.random.default_rng(seed)
    trials = checkpoints[-1]
    noise = random.random(trials)
    drafted = _choose(q, noise)
    verdict = noise if rule is Rule.SHARED_NOISE else random.random(trials)
    otherwise = _choose(p if rule is Rule.RESAMPLE_TARGET else residual(p, q), random.random(trials))
    said = np.where(verdict < _ratio(p, q)[drafted], drafted, otherwise)
    starts = [0, *checkpoints[:-1]]
    added = [np.bincount(said[a:b], minlength=len(p)) for a, b in zip(starts, checkpoints, strict=True)]
    histograms = np.cumsum(added, axis=0) / np.array(checkpoints)[:, None]
    return Simulation(checkpoints, divergence(histograms, p).tolist(), histograms)


def chance_distance(p: FloatArray, trials: int) -> float:
    """About the distance that chance alone leaves after this many draws from p (each count near normal)."""
    return float(np.sqrt(2.0 * p * (1.0 - p) / (np.pi * trials)).sum() / 2.0)


def _ratio(p: FloatArray, q: FloatArray) -> FloatArray:
    """min(1, p / q) [vocab], 1 where q says nothing."""
    return np.minimum(1.0, np.divide(p, q, out=np.ones_like(p), where=q > 0))


def _choose(weights: FloatArray, uniforms: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens by inversion of the distribution function."""
    edges = np.cumsum(weights)[:-1]
    return np.searchsorted(edges, uniforms, side="right")
