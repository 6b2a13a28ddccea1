"""Algorithm 1 of speculative decoding, on a chain of sampled draws."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws
from headstart.verification.draws import Draw


def judge_chain(
    chain: Sequence[Draw], target: Tensor, laws: NodeLaws, noise: SequenceNoise, root_position: int
) -> tuple[int, Tensor]:
    """How many draws x_i ~ q_i are kept, and the law of the token that follows them.

    ``target`` is p_1, the law before the first draw; laws are float64 [vocab]. x_i is kept while
    u_i q_i(x_i) < p_i(x_i), with probability min(1, p_i / q_i); a rejection leaves norm(max(p_i - q_i, 0)), a chain
    kept to its end the law p after it. So each token leaves with probability min(p, q) + (p - min(p, q)) = p.
    Source: Leviathan, Kalman and Matias 2023, Algorithm 1 and appendix A.1.
    """
    for kept, draw in enumerate(chain):
        uniform = noise.uniform(Stream.ACCEPT, root_position, draw.index)
        if not algebra.accepts(uniform, float(target[draw.token]), float(draw.law[draw.token])):
            return kept, algebra.residual(target, draw.law)
        target = laws.probs(draw.node)
    return len(chain), target
