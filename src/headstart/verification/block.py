"""Block verification of a chain of sampled draws: it is judged as a whole, and more of it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws
from headstart.verification.draws import Draw


def judge_block(
    chain: Sequence[Draw], target: Tensor, laws: NodeLaws, noise: SequenceNoise, root_position: int
) -> tuple[int, Tensor]:
    """How many draws x_i ~ q_i are kept, and the law of the token that follows them (up to a factor).

    ``target`` is p_1, the law before the first draw; laws are float64 [vocab]. With w_0 = 1 and
    w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)), the largest i with u_i < h_i is kept: h_i = S_i / (S_i + 1 - w_i),
    S_i = sum(max(w_i p_{i+1} - q_{i+1}, 0)), and h_n = w_n. Fewer than n leave norm(max(w_i p_{i+1} - q_{i+1}, 0)), the
    whole chain the law p after it. P(at least i kept | x_1..x_i) = w_i, so token x leaves after x_1..x_i with mass
    min(q, w p) + max(w p - q, 0) = w p. Keeps no fewer tokens on average than Algorithm 1.
    Source: Sun et al. 2024, "Block verification accelerates speculative decoding", Algorithm 2.
    """
    kept, kept_weight, kept_target = 0, 1.0, target
    weight = 1.0
    for i, draw in enumerate(chain, 1):
        weight = algebra.block_weight(weight, float(target[draw.token]), float(draw.law[draw.token]))
        if weight == 0:
            break  # and all later weights are 0: nothing longer can be kept
        target = laws.probs(draw.node)
        chance = algebra.block_acceptance(weight, target, chain[i].law) if i < len(chain) else weight
        if noise.uniform(Stream.ACCEPT, root_position, draw.index) < chance:
            kept, kept_weight, kept_target = i, weight, target
    if kept == len(chain):
        return kept, kept_target
    return kept, algebra.residual(kept_weight * kept_target, chain[kept].law)
