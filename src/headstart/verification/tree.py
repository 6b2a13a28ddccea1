"""Trees of sampled draws: several draws at a node are tried one after the other, single ones as a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.draws import Draw, draws_by_parent, single_draws


class JudgeChain(Protocol):
    """``judge_chain`` or ``judge_block``."""

    def __call__(
        self, chain: Sequence[Draw], target: Tensor, laws: NodeLaws, noise: SequenceNoise, root_position: int
    ) -> tuple[int, Tensor]: ...


def verify_draws(
    tree: DraftTree, laws: NodeLaws, noise: SequenceNoise, root_position: int, judge: JudgeChain
) -> Verdict:
    """Walk down: where a node has several draws, ``try_draws``; where draws follow one another singly, ``judge`` them.

    Laws are float64 [vocab]. Where nothing more is kept, y is drawn from the law that is left there. Children that no
    draw landed on are point masses: if y is one of them, the walk goes on below it, for the target said it
    (docs/exactness.md 5). Every step leaves the target's law to the next one, and which rule judges a draw depends on
    the draws above it alone, never on values not yet judged; so the output follows the target.
    Sources: Miao et al. 2024 (SpecInfer) for several draws, Chen et al. 2024 (Sequoia) for draws without replacement.

    Raises:
        ValueError: the tree is made of point masses.
    """
    by_parent = draws_by_parent(tree)
    replaced = tree.law is not TreeLaw.WITHOUT_REPLACEMENT
    path: list[int] = []
    node, left = ROOT, laws.probs(ROOT)
    while True:
        stream = Stream.BONUS
        draws = by_parent.get(node, ())
        if len(draws) == 1:
            chain = single_draws(by_parent, node)
            kept, left = judge(chain, left, laws, noise, root_position)
            path += (draw.node for draw in chain[:kept])
            node = path[-1] if path else ROOT
            if kept < len(chain):
                stream = Stream.RESIDUAL
            elif node in by_parent:
                continue  # several draws wait at the chain's end
        elif draws:
            child, left = try_draws(draws, left, noise, root_position, replaced=replaced)
            if child is not None:
                path.append(child)
                node, left = child, laws.probs(child)
                continue
            stream = Stream.RESIDUAL
        token = noise.draw(stream, root_position, node + 1, left)
        child = tree.child_with(node, token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node, left = child, laws.probs(child)


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

    Laws are float64 [vocab]. With p_0 = ``target``, draw k from q_k is kept with probability
    min(1, p_{k-1}(x) / q_k(x)), else p_k = norm(max(p_{k-1} - q_k, 0)): each step is Algorithm 1 with target p_{k-1},
    so the kept draw, or y ~ p_K after K rejections, follows p. A duplicate always fails but still changes p_k. Draws
    that were not ``replaced`` came from one row, each from the rest of it: after a rejection q is renormalised without
    its token, p before it.
    Source: Leviathan et al. 2023 for one step; docs/exactness.md 3, 4 for several.
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
