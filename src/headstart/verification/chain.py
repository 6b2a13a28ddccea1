"""Algorithm 1 of speculative decoding, on a chain of sampled draws."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.drafting.tree import ROOT
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.draws import Draw


def verify_chain(chain: Sequence[Draw], laws: NodeLaws, noise: SequenceNoise, root_position: int) -> Verdict:
    """Keep the draws x_i ~ q_i while u_i q_i(x_i) < p_i(x_i), then say one more token.

    Laws are float64 [vocab]; ``chain`` comes from ``chain_of_draws``. x_i is kept with probability
    min(1, p_i / q_i); the first rejection is corrected by y ~ norm(max(p_i - q_i, 0)); if all are kept, y ~ p of the
    leaf. So each token leaves with probability min(p, q) + (p - min(p, q)) = p.
    Source: Leviathan, Kalman and Matias 2023, Algorithm 1 and appendix A.1.
    """
    path: list[int] = []
    node = ROOT
    for draw in chain:
        target = laws.probs(node)
        uniform = noise.uniform(Stream.ACCEPT, root_position, draw.index)
        if not algebra.accepts(uniform, float(target[draw.token]), float(draw.law[draw.token])):
            left = algebra.residual(target, draw.law)
            return Verdict(tuple(path), noise.draw(Stream.RESIDUAL, root_position, node + 1, left))
        node = draw.node
        path.append(node)
    return Verdict(tuple(path), noise.draw(Stream.BONUS, root_position, node + 1, laws.probs(node)))
