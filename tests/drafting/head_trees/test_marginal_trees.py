"""The likeliest paths of independent depths, against all paths there are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headstart.drafting.head_trees.marginal_trees import likeliest_paths
from headstart.passes.draft_tree import ROOT

GENERATOR = np.random.default_rng(7)
LAWS = np.sort(GENERATOR.dirichlet(np.full(4, 0.6), size=4), axis=1)[:, ::-1]
TOKENS = np.array([GENERATOR.permutation(20)[:4] for _ in range(4)])
LOG_PROBS = np.log(LAWS).astype(np.float32)


def every_path() -> dict[tuple[int, ...], float]:
    """Tokens of a path -> its probability."""
    ranks = [path for depth in range(1, 5) for path in itertools.product(range(4), repeat=depth)]
    return {
        tuple(int(TOKENS[slot, rank]) for slot, rank in enumerate(path)): math.prod(
            float(LAWS[slot, rank]) for slot, rank in enumerate(path)
        )
        for path in ranks
    }


def paths_of(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        assert parent < len(paths)
        paths.append((*paths[parent], token) if parent != ROOT else (token,))
    return paths


@pytest.mark.parametrize("nodes", [1, 2, 7, 31, 200])
def test_the_best_paths_of_all_are_taken(nodes: int) -> None:
    tree = likeliest_paths(LOG_PROBS, TOKENS, nodes, -math.inf)
    paths = paths_of(tree.tokens.tolist(), tree.parents.tolist())
    every = every_path()
    assert len(set(paths)) == len(paths) == min(nodes, len(every))
    assert sum(every[path] for path in paths) == pytest.approx(sum(sorted(every.values())[-nodes:]), rel=1e-5)


@pytest.mark.parametrize("least", [0.3, 0.05, 0.001])
def test_what_is_less_likely_than_asked_for_is_left_out(least: float) -> None:
    tree = likeliest_paths(LOG_PROBS, TOKENS, 1000, math.log(least))
    wanted = {path for path, probability in every_path().items() if probability >= least}
    assert set(paths_of(tree.tokens.tolist(), tree.parents.tolist())) == wanted


def test_one_rank_is_a_chain() -> None:
    tree = likeliest_paths(LOG_PROBS[:, :1], TOKENS[:, :1], 3, -math.inf)
    assert tree.tokens.tolist() == TOKENS[:3, 0].tolist()
    assert tree.parents.tolist() == [ROOT, 0, 1]


def test_what_cannot_be_is_never_guessed() -> None:
    log_probs = LOG_PROBS.copy()
    log_probs[:, 2:] = -np.inf
    log_probs[2] = np.nan
    tree = likeliest_paths(log_probs, TOKENS, 1000, -math.inf)
    allowed = {int(TOKENS[slot, rank]) for slot in range(2) for rank in range(2)}
    assert set(tree.tokens.tolist()) == allowed
    nothing = np.full((2, 3), -np.inf, np.float32)
    assert not len(likeliest_paths(nothing, TOKENS[:2, :3], 5, -math.inf).tokens)


def test_scores_are_log_probabilities_of_paths() -> None:
    tree = likeliest_paths(LOG_PROBS, TOKENS, 31, -math.inf)
    every = every_path()
    paths = paths_of(tree.tokens.tolist(), tree.parents.tolist())
    assert np.exp(tree.scores) == pytest.approx([every[path] for path in paths], rel=1e-5)
    assert (np.diff(tree.scores) <= 0).all()


def test_siblings_of_a_token_that_cannot_be_are_guessed() -> None:
    log_probs = LOG_PROBS.copy()
    log_probs[0, 1] = log_probs[1, 0] = -np.inf
    tree = likeliest_paths(log_probs, TOKENS, 1000, -math.inf)
    wanted = {path for path in every_path() if path[0] != TOKENS[0, 1] and TOKENS[1, 0] not in path[1:2]}
    assert set(paths_of(tree.tokens.tolist(), tree.parents.tolist())) == wanted
