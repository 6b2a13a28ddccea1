"""Static trees of ranks are the likeliest of their size."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headstart.drafting.base import DraftBudget
from headstart.drafting.head_trees.trees import TemplateTrees
from headstart.drafting.tree_templates import path_template, rank_tree
from headstart.passes.draft_tree import ROOT


def paths_of(parents: np.ndarray, ranks: np.ndarray) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(parents.tolist(), ranks.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), rank))
    return paths


@pytest.mark.parametrize("nodes", [1, 2, 5, 9])
def test_each_prefix_of_the_template_is_the_likeliest_tree_of_its_size(nodes: int) -> None:
    probabilities = (0.5, 0.2, 0.1)
    template = rank_tree((3, 9, 27), probabilities)
    every_path = [path for depth in (1, 2, 3) for path in itertools.product(range(3), repeat=depth)]
    values = sorted((math.prod(probabilities[rank] for rank in path) for path in every_path), reverse=True)
    chosen = paths_of(template.parents, template.ranks)[:nodes]
    assert [math.prod(probabilities[rank] for rank in path) for path in chosen] == pytest.approx(values[:nodes])


def test_a_template_grows_level_by_level_and_is_cut_to_budgets() -> None:
    """The tree of ranks: each node's token says its depth and rank; the first nodes are the likeliest."""
    paths = [(0,), (1,), (0, 0), (2,), (0, 0, 1), (1, 0), (0, 3)]
    for nodes, depth, ranks in ((7, 5, 8), (4, 5, 8), (7, 2, 8), (7, 5, 2), (1, 1, 1)):
        grown, beams = TemplateTrees(1, path_template(paths)), 1
        for level in range(1, depth + 1):
            tokens = np.broadcast_to(10 * level + np.arange(ranks), (1, beams, ranks))
            found = grown.grow(np.zeros(tokens.shape, np.float32), tokens)
            if found is None:
                break
            beams = found.tokens.shape[1]
        (tree,) = grown.trees(nodes, [DraftBudget(nodes, depth)])
        wanted = [path for path in paths if len(path) <= depth and max(path) < ranks][:nodes]
        said = paths_of(tree.parents, tree.tokens % 10)
        assert sorted(said) == sorted(wanted)
        assert (tree.tokens // 10).tolist() == [len(path) for path in said]
