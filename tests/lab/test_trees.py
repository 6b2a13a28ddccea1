"""Tree forms against brute force over every tree, and against simulation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from headstart_lab.theory import formulas as theory
from headstart_lab.theory import trees
from headstart_lab.theory.formulas import FloatArray, RoundCost

Shape = tuple[tuple[int, ...], ...]
"""A set of nodes, each the ranks on its path from the root."""


def all_trees(nodes: int, ranks: int, depth: int) -> Iterator[Shape]:
    """Every tree of exactly so many nodes: sets of paths closed under taking the parent."""
    paths = [path for level in range(1, depth + 1) for path in itertools.product(range(ranks), repeat=level)]
    for chosen in itertools.combinations(paths, nodes):
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            yield chosen


def value(shape: Shape, acceptances: FloatArray) -> float:
    return 1.0 + sum(float(np.prod([acceptances[i, rank] for i, rank in enumerate(path)])) for path in shape)


TABLES = [
    np.tile([0.6, 0.2], (3, 1)),
    np.tile([0.5, 0.5], (3, 1)),  # ties everywhere
    np.array([[0.4, 0.35], [0.9, 0.05], [0.7, 0.3]]),
    np.array([[0.1, 0.8], [0.3, 0.6], [1.0, 0.0]]),  # a later rank is the likelier one
    np.array([[0.9, 0.1], [0.0, 0.0], [0.5, 0.5]]),  # nothing below the first level
]


class TestReach:
    def test_product_along_the_path(self) -> None:
        parents = np.array([-1, -1, 0, 2], dtype=np.int32)
        reach = trees.reach_of(parents, [0.5, 0.3, 0.8, 0.25])
        assert reach.tolist() == pytest.approx([0.5, 0.3, 0.4, 0.1])
        assert trees.expected_tokens_of_tree(reach) == pytest.approx(2.3)

    def test_a_chain_is_equation_1(self) -> None:
        reach = trees.reach_of(np.arange(-1, 5, dtype=np.int32), [0.7] * 6)
        assert trees.expected_tokens_of_tree(reach) == pytest.approx(theory.expected_tokens(0.7, 6))
        empty = trees.reach_of(np.zeros(0, dtype=np.int32), [])
        assert trees.expected_tokens_of_tree(empty) == 1.0

    def test_agrees_with_walks_of_the_target(self) -> None:
        """The target's own draws walk the tree: tokens per round within the sampling error."""
        law = np.array([0.5, 0.3, 0.2])
        paths: list[tuple[int, ...]] = [(0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 0)]
        parents = np.array([paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths], dtype=np.int32)
        expected = trees.expected_tokens_of_tree(trees.reach_of(parents, [law[path[-1]] for path in paths]))
        rng, rounds = np.random.default_rng(11), 20_000
        tokens = np.ones(rounds)
        for i, drawn in enumerate(rng.choice(3, size=(rounds, 4), p=law).tolist()):
            walked: tuple[int, ...] = ()
            for token in drawn:
                walked = (*walked, token)
                if walked not in paths:
                    break
                tokens[i] += 1
        assert abs(tokens.mean() - expected) <= 4 * tokens.std() / np.sqrt(rounds)


class TestBestFirst:
    @pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4])
    def test_no_tree_of_that_size_is_better(self, table: FloatArray, nodes: int) -> None:
        grown = trees.best_first_tree(table, nodes)
        best = max(value(shape, table) for shape in all_trees(nodes, 2, 3))
        assert trees.expected_tokens_of_tree(grown.reach) == pytest.approx(best)

    @pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
    def test_is_a_tree_whose_every_prefix_is_the_best_smaller_one(self, table: FloatArray) -> None:
        grown = trees.best_first_tree(table, 12)
        assert (grown.parents < np.arange(len(grown.parents))).all()
        assert (np.diff(grown.reach) <= 1e-15).all()
        for size in range(len(grown.reach)):
            smaller = trees.best_first_tree(table, size)
            assert smaller.parents.tolist() == grown.parents[:size].tolist()
        conditionals = [table[depth - 1, rank] for depth, rank in zip(grown.depths, grown.ranks, strict=True)]
        np.testing.assert_allclose(trees.reach_of(grown.parents, conditionals), grown.reach)
        assert len(set(zip(grown.parents.tolist(), grown.ranks.tolist(), strict=True))) == len(grown.parents)

    def test_stops_where_nothing_is_left(self) -> None:
        assert len(trees.best_first_tree(TABLES[4], 100).reach) == 2
        assert len(trees.best_first_tree(np.zeros((3, 2)), 5).reach) == 0
        assert len(trees.best_first_tree(np.tile([0.6, 0.2], (2, 1)), 100).reach) == 2 + 4

    def test_one_guess_per_node_is_a_chain(self) -> None:
        grown = trees.best_first_tree(np.full((9, 1), 0.8), 9)
        assert grown.parents.tolist() == list(range(-1, 8))
        assert trees.expected_tokens_of_tree(grown.reach) == pytest.approx(theory.expected_tokens(0.8, 9))


COSTS = {
    "flat": RoundCost(target=lambda rows: 1.0),
    "staircase": RoundCost(target=lambda rows: 1.0 + 0.35 * ((rows - 1) // 3), draft=lambda depth: 0.05 * depth),
    "dear drafts": RoundCost(target=lambda rows: 1.0, draft=lambda depth: 0.45 * depth, overhead=0.1),
    "hopeless": RoundCost(target=lambda rows: float(rows), draft=lambda depth: 0.5 * depth),
}


class TestBestSize:
    @pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
    @pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
    def test_no_choice_of_nodes_is_better(self, table: FloatArray, cost: RoundCost) -> None:
        candidates = trees.best_first_tree(table, 10)
        got = trees.best_size(candidates.reach, candidates.depths, cost)
        best = 1.0 / cost.of(0, 0)
        for size in range(1, len(candidates.reach) + 1):
            for chosen in itertools.combinations(range(len(candidates.reach)), size):
                if all(candidates.parents[node] in (-1, *chosen) for node in chosen):
                    nodes = list(chosen)
                    tokens = trees.expected_tokens_of_tree(candidates.reach[nodes])
                    best = max(best, tokens / cost.of(size, int(candidates.depths[nodes].max())))
        assert got.rate == pytest.approx(best)
        assert set(candidates.parents[got.nodes].tolist()) <= {-1, *got.nodes.tolist()}
        assert got.tokens == pytest.approx(trees.expected_tokens_of_tree(candidates.reach[got.nodes]))

    def test_a_staircase_is_used_to_the_end_of_a_step(self) -> None:
        tree = trees.best_first_tree(np.tile([0.5, 0.2, 0.1], (20, 1)), 64)
        got = trees.best_size(tree.reach, tree.depths, RoundCost(target=lambda rows: 1.0 + (rows - 1) // 16))
        assert (len(got.nodes) + 1) % 16 == 0

    def test_plain_decoding_where_guesses_do_not_pay(self) -> None:
        tree = trees.best_first_tree(np.tile([0.3, 0.1], (3, 1)), 8)
        got = trees.best_size(tree.reach, tree.depths, COSTS["hopeless"])
        assert len(got.nodes) == 0
        assert (got.tokens, got.time) == (1.0, 1.0)

    def test_takes_candidates_in_any_order(self) -> None:
        tree = trees.best_first_tree(TABLES[2], 8)
        order = np.random.default_rng(3).permutation(8)
        cost = COSTS["staircase"]
        shuffled = trees.best_size(tree.reach[order], tree.depths[order], cost)
        assert shuffled.rate == pytest.approx(trees.best_size(tree.reach, tree.depths, cost).rate)

    def test_no_candidates(self) -> None:
        got = trees.best_size(np.zeros(0), np.zeros(0, dtype=np.int32), COSTS["flat"])
        assert got.rate == 1.0


class TestSequoia:
    @pytest.mark.parametrize("ranks", [(0.6, 0.2), (0.5, 0.3, 0.1), (0.3, 0.3), (0.2, 0.5)])
    def test_equals_brute_force(self, ranks: tuple[float, ...]) -> None:
        table = np.tile(ranks, (3, 1))
        got = trees.sequoia_tokens(ranks, nodes=4, depth=3)
        for depth, nodes in itertools.product((1, 2, 3), (1, 2, 3, 4)):
            best = max(
                (value(shape, table) for n in range(nodes + 1) for shape in all_trees(n, len(ranks), depth)),
                default=1.0,
            )
            assert got[depth, nodes] == pytest.approx(best)

    def test_equals_best_first_under_a_depth_limit(self) -> None:
        ranks = (0.55, 0.2, 0.1, 0.05)
        got = trees.sequoia_tokens(ranks, nodes=24, depth=6)
        for depth in range(1, 7):
            for nodes in range(25):
                grown = trees.best_first_tree(np.tile(ranks, (depth, 1)), nodes)
                assert got[depth, nodes] == pytest.approx(trees.expected_tokens_of_tree(grown.reach))

    def test_no_levels_or_no_nodes_is_plain_decoding(self) -> None:
        got = trees.sequoia_tokens((0.6, 0.2), nodes=5, depth=3)
        assert (got[0] == 1).all()
        assert (got[:, 0] == 1).all()
