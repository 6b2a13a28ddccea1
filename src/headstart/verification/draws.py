"""The draws of a sampled tree, as the rules read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from headstart.passes.draft_tree import DraftTree


@dataclass(frozen=True)
class Draw:
    """One random draw of a sampled tree."""

    index: int
    """Its place in the order of drawing, which keys its noise."""
    node: int
    """Where it landed."""
    token: int
    row: int
    """Row of ``draft_probs``."""
    law: Tensor
    """That row, float64 [vocab]."""


def draws_by_parent(tree: DraftTree) -> dict[int, list[Draw]]:
    """node (or ROOT) -> its draws, in the order they were made. Draws merged into one node stay apart.

    Raises:
        ValueError: the tree is made of point masses.
    """
    if tree.draws is None or tree.draft_probs is None:
        raise ValueError("a tree of point masses has no draws")
    laws = tree.draft_probs.cpu()
    by_parent: dict[int, list[Draw]] = {}
    draws = zip(tree.draws.parents.tolist(), tree.draws.nodes.tolist(), tree.draws.rows.tolist(), strict=True)
    for index, (parent, node, row) in enumerate(draws):
        draw = Draw(index, node, int(tree.tokens[node]), row, laws[row])
        by_parent.setdefault(parent, []).append(draw)
    return by_parent


def single_draws(by_parent: Mapping[int, Sequence[Draw]], node: int) -> list[Draw]:
    """The draws from ``node`` down for as long as each node has just one: a chain, as long as its own values say."""
    chain: list[Draw] = []
    while len(draws := by_parent.get(node, ())) == 1:
        chain.append(draws[0])
        node = draws[0].node
    return chain
