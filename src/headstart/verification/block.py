"""Block verification of a chain of sampled draws: the chain is judged as a whole, and more of it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.drafting.tree import ROOT
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.draws import Draw


def verify_block(chain: Sequence[Draw], laws: NodeLaws, noise: SequenceNoise, root_position: int) -> Verdict:
    """Keep the longest prefix x_1..x_i with u_i < h_i, then say one more token.

    Laws are float64 [vocab]; ``chain`` comes from ``chain_of_draws``. With w_0 = 1 and
    w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)): h_i = S_i / (S_i + 1 - w_i), S_i = sum(max(w_i p_{i+1} - q_{i+1}, 0)),
    and h_n = w_n. A prefix shorter than the chain is corrected by y ~ norm(max(w_i p_{i+1} - q_{i+1}, 0)), the whole
    chain is followed by y ~ p of the leaf. P(at least i kept | x_1..x_i) = w_i, so token x leaves after x_1..x_i with
    mass min(q, w p) + max(w p - q, 0) = w p. Keeps at least as many tokens on average as Algorithm 1.
    Source: Sun et al. 2024, "Block verification accelerates speculative decoding", Algorithm 2.
    """
    kept, kept_weight, kept_target = 0, 1.0, laws.probs(ROOT)
    weight, target = kept_weight, kept_target
    for i, draw in enumerate(chain, 1):
        weight = algebra.block_weight(weight, float(target[draw.token]), float(draw.law[draw.token]))
        if weight == 0:
            break  # and all later weights are 0: nothing longer can be kept
        target = laws.probs(draw.node)
        keep = algebra.block_acceptance(weight, target, chain[i].law) if i < len(chain) else weight
        if noise.uniform(Stream.ACCEPT, root_position, draw.index) < keep:
            kept, kept_weight, kept_target = i, weight, target
    path = tuple(draw.node for draw in chain[:kept])
    index = (path[-1] if path else ROOT) + 1
    if kept == len(chain):
        return Verdict(path, noise.draw(Stream.BONUS, root_position, index, kept_target))
    left = algebra.residual(kept_weight * kept_target, chain[kept].law)
    return Verdict(path, noise.draw(Stream.RESIDUAL, root_position, index, left))
