"""Static trees of ranks are the likeliest of their size."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headstart.draft_tree import ROOT
from headstart.drafting.base import DraftBudget
from headstart.drafting.head_trees import TemplateTrees
from headstart.drafting.tree_templates import greedy_paths, path_template, rank_tree


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


def test_the_greedy_tree_is_the_likeliest_of_its_size() -> None:
    accuracy = ((0.6, 0.2, 0.1), (0.5, 0.2, 0.1))
    every = {(i,): accuracy[0][i] for i in range(3)} | {
        (i, j): accuracy[0][i] * accuracy[1][j] for i in range(3) for j in range(3)
    }
    for size in range(1, 13):
        paths = greedy_paths(accuracy, size)
        best = sorted(every.values(), reverse=True)[:size]
        assert sum(every[path] for path in paths) == pytest.approx(sum(best))
        assert all(path[:-1] in [(), *paths[:i]] for i, path in enumerate(paths))


@pytest.mark.parametrize(("nodes", "depth", "ranks"), [(15, 5, 8), (40, 2, 8), (7, 3, 2), (1, 1, 1), (30, 4, 3)])
def test_a_cut_template_is_what_grows_level_by_level(nodes: int, depth: int, ranks: int) -> None:
    """The tree of ranks: each node's token says its depth and rank."""
    accuracy = ((0.5, 0.2, 0.1, 0.05), (0.6, 0.2, 0.1), (0.3, 0.2), (0.3, 0.1))
    template = path_template(greedy_paths(accuracy, 40))
    cut = template.cut(nodes, depth, ranks)
    grown, beams = TemplateTrees(1, template), 1
    for level in range(1, depth + 1):
        tokens = np.broadcast_to(10 * level + np.arange(min(ranks, 4)), (1, beams, min(ranks, 4)))
        found = grown.grow(np.zeros(tokens.shape, np.float32), tokens)
        if found is None:
            break
        beams = found.tokens.shape[1]
    (wanted,) = grown.trees(nodes, [DraftBudget(nodes, depth)])
    assert cut.parents.tolist() == wanted.parents.tolist()
    assert (10 * cut.depths + cut.ranks).tolist() == wanted.tokens.tolist()
