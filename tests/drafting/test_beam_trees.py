"""Which nodes of the trees of beams are kept together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drafting_toys import ToySequence

from headstart.drafting.base import BeamView, DraftBudget
from headstart.drafting.beam_trees import LEAST, WIDER, chosen_nodes, groups_of, kept_mask, path_scores, wide_budgets
from headstart.passes.draft_tree import ROOT


def beam(place: int, score: float, group: int = 1, width: int = 2) -> ToySequence:
    sequence = ToySequence(place, [1, 2, 3])
    sequence.beam = BeamView(group, width, score)  # type: ignore[attr-defined]
    return sequence


def budget(group_nodes: int) -> DraftBudget:
    return DraftBudget(4, 4, group_nodes=group_nodes)


TOKENS = [[1, 2, 3, 4, 5], [6, 7, 8, 9]]
PARENTS = [[ROOT, ROOT, 0, 0, 1], [ROOT, ROOT, 0, 1]]
SCORES = [[-0.1, -2.0, -0.3, -3.0, -2.1], [-0.2, -0.9, -0.4, -1.0]]


def test_the_best_of_all_beams_are_kept_level_by_level() -> None:
    beams = [beam(0, -1.0, width=1), beam(1, -2.5, width=1)]
    # Totals of the first level: -1.1, -3.0 and -2.7, -3.4; below the three best of them: -1.3, -4.0, -3.1 and -2.9.
    assert chosen_nodes(beams, [budget(9)] * 2, TOKENS, PARENTS, SCORES) == {0: [0, 1, 2, 4], 1: [0, 2]}
    assert chosen_nodes(beams, [budget(4)] * 2, TOKENS, PARENTS, SCORES) == {0: [0, 1, 2], 1: [0]}


def test_a_beam_far_behind_gets_nothing() -> None:
    kept = chosen_nodes([beam(0, -1.0), beam(1, -9.0)], [budget(2)] * 2, TOKENS, PARENTS, SCORES)
    assert kept == {0: [0, 1], 1: []}


def test_nothing_is_kept_that_ends_a_path() -> None:
    beams = [beam(0, -1.0, width=1), beam(1, -2.5, width=1)]
    for each in beams:
        each.beam = replace(each.beam, end_tokens=frozenset({1, 8}))  # type: ignore[attr-defined]
    assert chosen_nodes(beams, [budget(9)] * 2, TOKENS, PARENTS, SCORES) == {0: [1, 4], 1: [0, 1, 3]}


def test_levels_are_so_many_times_as_wide_as_the_search() -> None:
    tree = [ROOT] * 20
    scores = (-np.arange(20.0)).tolist()
    assert chosen_nodes([beam(0, 0.0)], [budget(99)], [tree], [tree], [scores]) == {0: list(range(2 * WIDER))}


def test_groups_are_kept_apart_and_others_left_alone() -> None:
    sequences = [beam(0, -1.0, group=1), ToySequence(5, [1]), beam(2, -1.0, group=2)]
    assert [(view.group, places) for view, places in groups_of(sequences)] == [(1, [0]), (2, [2])]
    parents, scores = [PARENTS[0], PARENTS[0], PARENTS[1]], [SCORES[0], SCORES[0], SCORES[1]]
    assert set(chosen_nodes(sequences, [budget(2)] * 3, parents, parents, scores)) == {0, 2}
    wide = wide_budgets(sequences, [budget(12), DraftBudget(4, 4), budget(12)])
    assert [each.nodes for each in wide] == [12, 4, 12]
    assert [each.min_probability for each in wide] == [LEAST, None, LEAST]


def test_scores_of_paths_add_up() -> None:
    parents = np.array([ROOT, 0, 1, ROOT], np.int32)
    assert path_scores(parents, np.array([-1.0, -2.0, -4.0, -8.0])).tolist() == [-1, -3, -7, -8]


@pytest.mark.parametrize("nodes", [[], [1], [0, 2]])
def test_masks(nodes: list[int]) -> None:
    assert np.flatnonzero(kept_mask(nodes, 3)).tolist() == nodes
