"""The walk: the target's own choice at each node decides, whatever was guessed."""

from __future__ import annotations

from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.verification.base import NodeLaws, Verdict


def walk(tree: DraftTree, laws: NodeLaws) -> Verdict:
    """Ask the target for its token at each node; go to the child that bears it, else stop with it.

    Law: only the target is sampled, once a node, with noise keyed by the token's position, so the output is a
    function of that noise and the target alone. Exact for every tree that did not see the noise; it keeps the path
    through node v with probability exactly its target probability, which no exact rule can exceed for point masses.
    Greedy: walk while the child is the argmax. Gumbel coupling (Daliri et al. 2024) is this walk on a tree that the
    drafter drew with the same noise: child = argmin E / q, token = argmin E / p, so they agree with probability at
    least (1 - TV) / (1 + TV), TV the total variation between p and q; here the shared noise is what is meant.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = laws.sample(node)
        child = tree.child_with(node, token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child
