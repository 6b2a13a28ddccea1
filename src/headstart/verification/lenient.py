"""Lenience: a named, lossy opt-in that trades the target's law for longer accepted paths."""

from __future__ import annotations

from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification import algebra
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.draws import draws_by_parent
from headstart.verification.tree import try_draws


def verify_lenient(
    tree: DraftTree, laws: NodeLaws, noise: SequenceNoise, root_position: int, lenience: float
) -> Verdict:
    """The iterative rule, or the greedy walk, that forgives a guess the target likes at least l times as well.

    Lossy for ``lenience`` l < 1, exact for l = 1. Sampled: draws x ~ q are kept with probability
    min(1, p(x) / (l q(x))), point masses with min(1, p(x) / l), each after the other; rejections leave
    norm(max(p - q, 0)), so that no token is said with more than p(x) / l (docs/exactness.md 8; sampling p itself
    instead would break that). Greedy: see ``_walk_greedy``. Source: Leviathan et al. 2023, appendix A.5.

    Raises:
        ConfigError: l outside (0, 1].
    """
    if not 0 < lenience <= 1:
        raise ConfigError(f"lenience is {lenience}; it must lie in (0, 1].")
    if laws.greedy:
        return _walk_greedy(tree, laws, lenience)
    by_parent = {} if tree.law is TreeLaw.POINT_MASS else draws_by_parent(tree)
    replaced = tree.law is not TreeLaw.WITHOUT_REPLACEMENT
    landed = {draw.node for draws in by_parent.values() for draw in draws}
    num_draws = sum(map(len, by_parent.values()))
    path: list[int] = []
    node = ROOT
    while True:
        draws = by_parent.get(node, ())
        child, left = try_draws(draws, laws.probs(node), noise, root_position, replaced=replaced, lenience=lenience)
        if child is None:
            for guess in tree.children.get(node, ()):
                if guess in landed:
                    continue
                token = int(tree.tokens[guess])
                uniform = noise.uniform(Stream.ACCEPT, root_position, num_draws + guess)
                if algebra.accepts(uniform, float(left[token]), 1.0, lenience):
                    child = guess
                    break
                left = algebra.without(left, token)
        if child is None:
            return Verdict(tuple(path), noise.draw(Stream.RESIDUAL, root_position, node + 1, left))
        path.append(child)
        node = child


def _walk_greedy(tree: DraftTree, laws: NodeLaws, lenience: float) -> Verdict:
    """Walk to the argmax; where no child bears it, to the best child with p(x) >= l max p, p at temperature 1.

    The paper prints the comparison the other way round, which would keep what the target likes least.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = laws.sample(node)
        child = tree.child_with(node, token)
        if child is None:
            children = tree.children.get(node, ())
            ratio, child = max(
                ((laws.peak_ratio(node, int(tree.tokens[guess])), guess) for guess in children), default=(0.0, None)
            )
            if ratio < lenience:
                child = None
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child
