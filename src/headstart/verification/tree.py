"""The iterative rule: several sampled draws at a node, on trees of any shape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headstart.drafting.tree import ROOT, DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.draws import Draw, draws_by_parent


def verify_tree(tree: DraftTree, laws: NodeLaws, noise: SequenceNoise, root_position: int) -> Verdict:
    """Walk down: at each node try its draws in order, then say one token of what is left.

    Laws are float64 [vocab]. At a node with p_0 = p, draw k from q_k is kept with probability
    min(1, p_{k-1}(x) / q_k(x)), else p_k = norm(max(p_{k-1} - q_k, 0)); after K rejections y ~ p_K. Each step is
    Algorithm 1 with target p_{k-1}, so y or the kept draw follows p. After a kept draw, all draws that landed on the
    same node go on. A duplicate always fails but still changes p_k. Children that no draw landed on are point masses:
    if y is one of them, the walk goes on there (the target said it; methods-exact A5).
    Siblings drawn without replacement: after each rejection q is renormalised without its token, p before it.
    Sources: Leviathan et al. 2023 for one step, Miao et al. 2024 (SpecInfer) for several draws, Chen et al. 2024
    (Sequoia) for draws without replacement.

    Raises:
        ValueError: the tree is made of point masses.
    """
    by_parent = draws_by_parent(tree)
    replaced = tree.law is not TreeLaw.WITHOUT_REPLACEMENT
    path: list[int] = []
    node = ROOT
    while True:
        draws = by_parent.get(node, ())
        child, left = try_draws(draws, laws.probs(node), noise, root_position, replaced=replaced)
        if child is None:
            stream = Stream.RESIDUAL if draws else Stream.BONUS
            token = noise.draw(stream, root_position, node + 1, left)
            child = tree.child_with(node, token)
            if child is None:
                return Verdict(tuple(path), token)
        path.append(child)
        node = child


def try_draws(
    draws: Sequence[Draw],
    target: Tensor,
    noise: SequenceNoise,
    root_position: int,
    *,
    replaced: bool,
    lenience: float = 1.0,
) -> tuple[int | None, Tensor]:
    """The node of the first draw that is kept, if one is, and the target's law as the rejections left it.

    ``target`` and the result are float64 [vocab]. ``replaced``: each draw was made from its whole row.
    """
    rest: dict[int, Tensor] = {}
    for draw in draws:
        draft = draw.law if replaced else rest.get(draw.row, draw.law)
        uniform = noise.uniform(Stream.ACCEPT, root_position, draw.index)
        if algebra.accepts(uniform, float(target[draw.token]), float(draft[draw.token]), lenience):
            return draw.node, target
        target = algebra.residual(target, draft)
        if not replaced:
            rest[draw.row] = algebra.without(draft, draw.token)
    return None, target
