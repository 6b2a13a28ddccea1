"""The algebra of speculative decoding on chains: tokens, time and operations per round.

Sections, theorems and equations without another name are those of Leviathan, Kalman and Matias, "Fast Inference
from Transformers via Speculative Decoding" (ICML 2023). Symbols as there: ``alpha`` is the mean acceptance
rate in [0, 1], ``gamma`` the draft length (>= 0), ``c`` the time of one draft step over that of one target
pass (>= 0), ``c_hat`` the same ratio for arithmetic operations. p and q are the target's and the draft's law,
after all transforms, along the last axis of an array. Where ``Real`` is written, a float gives a float and an
array an array of its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Real = TypeVar("Real", float, FloatArray)


# --- Tokens per round ---------------------------------------------------------------------------------------------


def expected_tokens(alpha: Real, gamma: int) -> Real:
    """Expected tokens per round, correction or bonus included: 1 + alpha + ... + alpha**gamma (Eq. 1).

    It is also the factor by which reads of the target's weights and cache shrink (section 3.4). Summed by
    Horner's rule, so that alpha = 1 (gamma + 1 tokens) is no special case and nothing cancels close to it.
    """
    tokens = alpha * 0 + 1.0
    for _ in range(gamma):
        tokens = 1.0 + alpha * tokens
    return tokens


def token_count_law(alpha: float, gamma: int) -> FloatArray:
    """[gamma + 1] probability of 1, 2, ..., gamma + 1 tokens in a round: a capped geometric law (section 3.1)."""
    law = (1.0 - alpha) * alpha ** np.arange(gamma + 1, dtype=np.float64)
    law[-1] = alpha**gamma
    return law


def expected_tokens_by_position(acceptances: Sequence[float] | FloatArray) -> float:
    """Expected tokens per round when position i is accepted with ``acceptances[i]``, given all before it were.

    The i.i.d. assumption of section 3.1 dropped: 1 + sum over i of the product of the first i rates.
    """
    return 1.0 + float(np.cumprod(np.asarray(acceptances, dtype=np.float64)).sum())


def oracle_tokens(alpha: Real) -> Real:
    """Expected tokens per round if an oracle names the draft length that will be accepted: 1 / (1 - alpha) (3.5)."""
    with np.errstate(divide="ignore"):
        tokens: Real = np.divide(1.0, 1.0 - alpha)
    return tokens


# --- Time and operations ------------------------------------------------------------------------------------------


def walltime_improvement(alpha: Real, gamma: int, c: float) -> Real:
    """Expected speed-up over plain decoding (Theorem 3.8), for targets that check gamma + 1 rows in the time of one."""
    return expected_tokens(alpha, gamma) / (1.0 + gamma * c)


def oracle_improvement(alpha: Real, c: float) -> Real:
    """Speed-up under the oracle of section 3.5, every accepted guess still paid for: 1 / (1 - alpha + c alpha).

    The oracle drafts alpha / (1 - alpha) tokens per round on average. Against the best fixed draft length this is
    the paper's "up to ~60 % higher"; 1 / (1 - alpha) alone, as if guesses were free, has no such bound. From c = 1 on
    an accepted guess takes as long as the pass that it saves, so the oracle drafts nothing: plain decoding, 1.
    """
    with np.errstate(divide="ignore"):
        improvement: Real = np.divide(1.0, 1.0 - alpha + min(c, 1.0) * alpha)
    return improvement


def can_improve(alpha: float, c: float) -> bool:
    """Whether any draft length beats plain decoding: alpha > c (Corollary 3.9; the bound is tight)."""
    return alpha > c


def guaranteed_improvement(alpha: Real, c: float) -> Real:
    """The speed-up that the best draft length reaches at least, if alpha > c: (1 + alpha) / (1 + c) (Corollary 3.9)."""
    return (1.0 + alpha) / (1.0 + c)


def operations_increase(alpha: Real, gamma: int, c_hat: float) -> Real:
    """Arithmetic operations per token over plain decoding's (Theorem 3.11)."""
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def best_gamma(alpha: float, c: float, limit: int = 256) -> int:
    """The draft length that maximises Theorem 3.8 (section 3.5), the shortest among equals; 0 is plain decoding.

    One more guess pays while alpha**(gamma+1) / c exceeds the tokens per unit of time so far. That margin only
    falls with gamma, so the first loss ends the search.

    Args:
        limit: the longest draft considered; reached where longer is always better (c = 0 or alpha = 1).
    """
    gamma, gain, tokens = 0, alpha, 1.0
    while gamma < limit and gain * (1.0 + gamma * c) > c * tokens:
        gamma, gain, tokens = gamma + 1, gain * alpha, tokens + gain
    return gamma


@dataclass(frozen=True)
class RoundCost:
    """What a round costs, in any one unit of time: ``draft(depth) + target(rows) + overhead``.

    The curves need not be smooth: a target pass is often flat up to a knee and a staircase beyond it.
    """

    target: Callable[[int], float]
    """Time of a target pass over this many rows; 1 row is plain decoding."""
    draft: Callable[[int], float] = lambda depth: 0.0
    """Time to draft this many levels; ``draft(0)`` is what it costs to propose nothing."""
    overhead: float = 0.0
    """Time of a round that is neither draft nor target pass."""

    def of(self, nodes: int, depth: int) -> float:
        """Time of a round that verifies ``nodes`` guesses, ``depth`` levels deep (the root adds one row)."""
        return self.draft(depth) + self.target(nodes + 1) + self.overhead


def best_draft_length(acceptances: Sequence[float] | FloatArray, cost: RoundCost) -> int:
    """The chain length in 0..len(acceptances) with most tokens per time, the shortest among equals.

    Section 3.5 with a rate for each position and measured costs; ``acceptances`` as for
    ``expected_tokens_by_position``.
    """
    reach = np.cumprod(np.asarray(acceptances, dtype=np.float64))
    tokens = np.concatenate([[1.0], 1.0 + np.cumsum(reach)])
    times = np.array([cost.of(length, length) for length in range(len(tokens))])
    return int(np.argmax(tokens / times))


# --- Acceptance from two laws -------------------------------------------------------------------------------------


def divergence(p: FloatArray, q: FloatArray) -> FloatArray:
    """D_LK of Definition 3.2, the total variation distance: sum |p - M| with M = (p + q) / 2, over the last axis."""
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2)


def acceptance(p: FloatArray, q: FloatArray, lenience: float = 1.0) -> FloatArray:
    """Probability that a draw from q is accepted: sum min(p / lenience, q) over the last axis.

    Without lenience this is beta = 1 - D_LK (Lemma 3.3, Theorem 3.5); its mean over prefixes that the target
    wrote is alpha (Corollary 3.6). ``lenience`` in [0, 1] is the l of appendix A.5; 0 accepts everything.
    """
    return np.asarray(_accepted_mass(p, q, lenience).sum(axis=-1))


def _accepted_mass(p: FloatArray, q: FloatArray, lenience: float) -> FloatArray:
    """Mass with which each token is drawn from q and accepted."""
    return q if lenience == 0 else np.minimum(p / lenience, q)


def residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """norm(max(0, p - q)) over the last axis: the law left after a rejection (section 2.3); p where nothing is left."""
    left = np.maximum(p - q, 0.0)
    mass = left.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(mass > 0, left / np.where(mass > 0, mass, 1.0), p))


def lenient_law(p: FloatArray, q: FloatArray, lenience: float) -> FloatArray:
    """The law of a token under lenience, corrections drawn from ``residual(p, q)``: nowhere above p / lenience (A.5).

    A bound from above only: a token may lose all its mass but the correction's share.
    """
    kept = _accepted_mass(p, q, lenience)
    return np.asarray(kept + (1.0 - kept.sum(axis=-1, keepdims=True)) * residual(p, q))


def rejection_sampling_acceptance(p: FloatArray, q: FloatArray) -> FloatArray:
    """Acceptance of one step of classic rejection sampling: 1 / max(p / q), never above ``acceptance`` (A.2)."""
    ratio = np.divide(q, p, out=np.full(np.broadcast(p, q).shape, np.inf), where=p > 0)
    return np.asarray(ratio.min(axis=-1))


def coupled_acceptance(p: FloatArray, q: FloatArray) -> float:
    """Probability that drafter and target, each drawing by the same Gumbel noise, draw the same token.

    sum over x of 1 / sum_y max(p_y / p_x, q_y / q_x), at least (1 - TV) / (1 + TV) (Daliri et al. 2024).

    Args:
        p, q: one law each, [vocab].
    """
    shared = np.flatnonzero((p > 0) & (q > 0))
    worst = np.maximum(p[None, :] / p[shared, None], q[None, :] / q[shared, None])
    return float((1.0 / worst.sum(axis=1)).sum())


def draws_acceptance(p: FloatArray, draws: Sequence[FloatArray]) -> float:
    """Probability that one of several independent draws is accepted (Stratos, section 2; SpecInfer).

    Draw k meets what the rejections before it left of p: 1 - prod(1 - sum min(p_{k-1}, q_k)).

    Args:
        p: [vocab].
        draws: the law of each draw, [vocab] each, in order.
    """
    rejected = 1.0
    for q in draws:
        rejected *= max(0.0, 1.0 - float(acceptance(p, q)))
        p = residual(p, q)
    return 1.0 - rejected


def draws_without_replacement_acceptance(p: FloatArray, q: FloatArray, draws: int) -> float:
    """``draws_acceptance`` of draws from one law, each token drawn at most once (Sequoia, Chen et al. 2024).

    After a rejection p becomes the residual by the law just drawn from, then q loses the token and is normalised.
    Enumerates the rejected tokens: meant for small vocabularies (len(q)**draws steps). Stops when q is exhausted.
    """
    mass = float(q.sum())
    if draws == 0 or mass <= 0:
        return 0.0
    q = q / mass
    left = residual(p, q)
    accepted = 0.0
    for token in np.flatnonzero(q):
        keep = min(1.0, float(p[token] / q[token]))
        accepted += float(q[token]) * keep
        if keep < 1.0:
            rest = np.where(np.arange(len(q)) == token, 0.0, q)
            accepted += float(q[token]) * (1.0 - keep) * draws_without_replacement_acceptance(left, rest, draws - 1)
    return accepted


def block_expected_tokens(p: FloatArray, q: FloatArray) -> float:
    """Expected tokens per round under block verification: 1 + sum over i of E_q[w_i] (Sun et al. 2024, Alg. 2).

    w_0 = 1 and w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)). Never below token-wise verification, equal at one
    position. Enumerates the values of w, merged where they agree to 13 digits: meant for small vocabularies (at
    most vocab**position states).

    Args:
        p, q: [position, vocab], laws that depend on the position but not on the draws before it.
    """
    weights: FloatArray = np.ones(1)
    masses: FloatArray = np.ones(1)
    tokens = 1.0
    for target, draft in zip(p, q, strict=True):
        drawn = draft > 0
        ratios = target[drawn] / draft[drawn]
        states = np.minimum(1.0, weights[:, None] * ratios).ravel().round(13)
        weights, place = np.unique(states, return_inverse=True)
        masses = np.asarray(np.bincount(place, weights=(masses[:, None] * draft[drawn]).ravel()), dtype=np.float64)
        tokens += float(weights @ masses)
    return tokens


# --- The n-gram chapter -------------------------------------------------------------------------------------------


def expected_accepted(alpha: Real, drafts: int) -> Real:
    """Expected accepted guesses out of ``drafts``: alpha + ... + alpha**drafts, one less than the expected tokens."""
    return expected_tokens(alpha, drafts) - 1.0


def expected_accepted_as_printed(alpha: float, drafts: int) -> float:
    """The n-gram chapter's sum, kept to show its error: sum_{k=0}^{D} k alpha^k (1 - alpha) + D alpha^D.

    The first sum must end at D - 1: that all D are accepted is the last term's case, and is counted twice here.
    """
    k = np.arange(drafts + 1)
    return float((k * alpha**k).sum() * (1.0 - alpha) + drafts * alpha**drafts)
