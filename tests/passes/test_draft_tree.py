from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.passes.batch import RowInputs
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw

PATHS = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6)


def tree_of(tokens: list[int], parents: list[int], probe: list[bool] | None = None) -> DraftTree:
    return DraftTree(
        np.array(tokens, dtype=np.int32),
        np.array(parents, dtype=np.int32),
        probe=None if probe is None else np.array(probe),
    )


def test_the_empty_tree() -> None:
    tree = DraftTree.empty()
    assert len(tree) == tree.num_drafted == 0
    assert tree.is_chain
    assert tree.children == {}
    assert tree.child_with(ROOT, 0) is None
    assert DraftTree.chain([]) is tree


def test_a_chain_of_guesses() -> None:
    tree = DraftTree.chain([7, 7, 5])
    assert tree.parents.tolist() == [ROOT, 0, 1]
    assert tree.depths.tolist() == [1, 2, 3]
    assert tree.is_chain
    assert tree.law is TreeLaw.POINT_MASS
    assert tree.path_to(2) == [0, 1, 2]
    assert tree.path_to(ROOT) == []


def test_a_chain_of_draws_names_the_law_of_each() -> None:
    probs = torch.full((2, 4), 0.25, dtype=torch.float64)
    tree = DraftTree.chain([1, 3], probs)
    assert tree.law is TreeLaw.SAMPLED
    assert tree.draws is not None
    assert tree.draws.parents.tolist() == [ROOT, 0]
    assert tree.draws.nodes.tolist() == tree.draws.rows.tolist() == [0, 1]
    assert tree.draft_probs is probs


def test_branches() -> None:
    #      root
    #     0    1
    #    2 3   4
    tree = tree_of([8, 9, 8, 7, 8], [ROOT, ROOT, 0, 0, 1])
    assert tree.depths.tolist() == [1, 1, 2, 2, 2]
    assert tree.children == {ROOT: [0, 1], 0: [2, 3], 1: [4]}
    assert not tree.is_chain
    assert tree.path_to(3) == [0, 3]
    assert tree.child_with(0, 7) == 3
    assert tree.child_with(0, 9) is None
    assert tree.child_with(4, 8) is None


def test_probe_nodes_are_no_guesses() -> None:
    tree = tree_of([1, 2, 3], [ROOT, ROOT, 1], probe=[False, True, True])
    assert tree.num_drafted == 1
    assert tree.children == {ROOT: [0]}
    assert tree.child_with(ROOT, 2) is None
    assert tree.depths.tolist() == [1, 1, 2]


@given(PATHS, st.integers(0, 12))
def test_merged_paths_hold_every_prefix_once_and_nothing_else(paths: list[list[int]], max_nodes: int) -> None:
    tree = DraftTree.from_paths(paths, max_nodes)
    prefixes = list(dict.fromkeys(tuple(path[:i]) for path in paths for i in range(1, len(path) + 1)))
    held = [tuple(tree.tokens[tree.path_to(node)].tolist()) for node in range(len(tree))]
    assert len(set(held)) == len(held) == min(max_nodes, len(prefixes))
    assert set(held) <= set(prefixes)
    if max_nodes >= len(prefixes):
        assert held == prefixes


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [([1, 2], [ROOT]), ([1, 2], [ROOT, 1]), ([1, 2], [1, ROOT]), ([1], [-2])],
    ids=["lengths differ", "own parent", "parent behind child", "below root"],
)
def test_malformed_structures_are_refused(tokens: list[int], parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents"):
        tree_of(tokens, parents)


def test_a_law_and_its_draws_come_together() -> None:
    tokens, parents = np.array([1], dtype=np.int32), np.array([ROOT], dtype=np.int32)
    zero = np.zeros(1, dtype=np.int32)
    probs = torch.ones(1, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="needs draws"):
        DraftTree(tokens, parents, TreeLaw.SAMPLED)
    with pytest.raises(ValueError, match="has no draws"):
        DraftTree(tokens, parents, draws=Draws(parents, zero, zero), draft_probs=probs)
    with pytest.raises(ValueError, match="come together"):
        DraftTree(tokens, parents, TreeLaw.SAMPLED, Draws(parents, zero, zero))


def test_only_probe_nodes_read_something_else_than_their_token():
    inputs = RowInputs(np.array([1, 2], np.int32), torch.tensor([[1.0], [2.0]]))
    tokens, parents = np.array([5, 0, 0], np.int32), np.array([-1, 0, 1], np.int32)
    tree = DraftTree(tokens, parents, probe=np.array([False, True, True]), inputs=inputs)
    kept = tree.restricted_to(np.array([True, True, False]))
    assert kept.inputs is not None
    assert (kept.inputs.rows.tolist(), kept.inputs.values.tolist()) == ([1], [[1.0]])
    assert tree.restricted_to(np.array([True, False, False])).inputs is None
    for probe in (None, np.array([False, False, True])):
        with pytest.raises(ValueError, match="only probe nodes"):
            DraftTree(tokens, parents, probe=probe, inputs=inputs)
