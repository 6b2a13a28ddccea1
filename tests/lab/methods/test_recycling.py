from __future__ import annotations

import numpy as np
import pytest
from drafting_toys import ToySequence, accepted_share, play, second_order_target
from hypothesis import given
from hypothesis import strategies as st

from headstart.drafting.base import DraftBudget, RoundOutcome
from headstart.drafting.context import DraftContext
from headstart.drafting.tree_templates import rank_tree
from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart_lab.methods.lookahead.recycling import (
    LEVEL_SIZES,
    RANK_PROBABILITIES,
    RecyclingDrafter,
    RecyclingOptions,
)

VOCAB = 30


def paths_of(parents: np.ndarray, ranks: np.ndarray) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(parents.tolist(), ranks.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), rank))
    return paths


def test_the_template_has_the_papers_levels() -> None:
    template = rank_tree(LEVEL_SIZES, RANK_PROBABILITIES)
    assert np.bincount(template.depths)[1:].tolist() == [8, 21, 25, 15, 8, 3]
    paths = paths_of(template.parents, template.ranks)
    assert len(set(paths)) == 80
    assert [len(path) for path in paths] == template.depths.tolist()


def verified(sequence: ToySequence, tokens: list[int], top_ids: list[list[int]]) -> RoundOutcome:
    """Rows that a pass read, and the target's best tokens after each."""
    return RoundOutcome(
        sequence,
        0,
        np.array(tokens, dtype=np.int32),
        DraftTree.empty(),
        committed=(0,),
        top_ids=np.array(top_ids, dtype=np.int64),
    )


def draft(drafter: RecyclingDrafter, root: int, budget: DraftBudget) -> list[tuple[int, ...]]:
    tree = drafter.propose([ToySequence(1, [root])], [budget])[0]
    return [tuple(tree.tokens[tree.path_to(node)].tolist()) for node in range(len(tree))]


RANKINGS = st.lists(
    st.tuples(st.integers(0, VOCAB - 1), st.permutations(range(VOCAB)).map(lambda ids: ids[:8])), max_size=25
)


@given(RANKINGS, st.integers(1, 40), st.integers(1, 6))
def test_the_tree_is_filled_from_the_last_row_of_each_token(
    rows: list[tuple[int, list[int]]], nodes: int, depth: int
) -> None:
    drafter = RecyclingDrafter(DraftContext(VOCAB), RecyclingOptions(tree_nodes=80))
    if rows:
        drafter.observe([verified(ToySequence(1, [0]), [token for token, _ in rows], [ids for _, ids in rows])])
    matrix = dict(rows)
    template = rank_tree(LEVEL_SIZES, RANK_PROBABILITIES)
    expected: list[tuple[int, ...]] = []
    for path in paths_of(template.parents, template.ranks):
        tokens = [0]
        while len(tokens) <= len(path) and tokens[-1] in matrix:
            tokens.append(matrix[tokens[-1]][path[len(tokens) - 1]])
        if len(tokens) == len(path) + 1 <= depth + 1:
            expected.append(tuple(tokens[1:]))
    assert draft(drafter, 0, DraftBudget(nodes, depth)) == expected[:nodes]


def test_cold_rows_guess_nothing() -> None:
    drafter = RecyclingDrafter(DraftContext(VOCAB), RecyclingOptions())
    assert draft(drafter, 3, DraftBudget(9, 9)) == []


def test_rejected_rows_and_earlier_requests_teach() -> None:
    target = second_order_target(12, seed=3)
    drafter = RecyclingDrafter(DraftContext(12), RecyclingOptions())
    first, again = (ToySequence(i, [1, 2, 3]) for i in range(2))
    budget = DraftBudget(15, 6)
    before = accepted_share(drafter, first, target, 6, budget)
    assert accepted_share(drafter, again, target, 6, budget) > before
    read = {int(token) for trees in play(drafter, [first], target, 5, budget, 12) for token in trees[0].tokens}
    assert all(draft(drafter, token, budget) for token in read)


def test_scopes_do_not_teach_each_other() -> None:
    drafter = RecyclingDrafter(DraftContext(VOCAB, scope_of=lambda sequence: sequence.id), RecyclingOptions())
    drafter.observe([verified(ToySequence(1, [0]), [5], [list(range(8))])])
    for number, expected in ((1, 8), (2, 0)):
        tree = drafter.propose([ToySequence(number, [5])], [DraftBudget(8, 1)])[0]
        assert len(tree) == expected


def test_a_vocabulary_below_eight() -> None:
    drafter = RecyclingDrafter(DraftContext(3), RecyclingOptions())
    drafter.observe([verified(ToySequence(1, [0]), [0, 1], [[1, 2, 0], [0, 1, 2]])])
    assert (1, 0) in draft(drafter, 0, DraftBudget(9, 9))


@pytest.mark.parametrize("tree_nodes", [0, 81])
def test_options_out_of_range_are_refused(tree_nodes: int) -> None:
    with pytest.raises(ConfigError, match="tree_nodes"):
        RecyclingOptions(tree_nodes=tree_nodes)
