"""Trees that grow from a head's confidence say how sure it was of each guess."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import DraftBudget
from headstart.drafting.head_trees.trees import ConfidenceTrees, path_bounds
from headstart.passes.draft_tree import MAX_GRADES

SURE, UNSURE = math.log(0.97), math.log(0.03)


def level(*beams: list[float]) -> NDArray[np.float32]:
    """Log-probabilities of one sequence's beams."""
    return np.array([beams], dtype=np.float32)


def test_guesses_are_graded_by_confidence_given_their_parent() -> None:
    trees = ConfidenceTrees(1, 2)
    trees.grow(level([SURE, UNSURE]), np.array([[[7, 8]]]))
    # Below the sure guess the head is sure again, below the other one too.
    trees.grow(level([SURE, UNSURE], [SURE, UNSURE]), np.array([[[1, 2], [3, 4]]]))
    (tree,) = trees.trees(6, [DraftBudget(6, 2)])
    assert tree.grades is not None
    grade = dict(zip(tree.tokens.tolist(), tree.grades.tolist(), strict=True))
    assert grade[7] > grade[8]
    assert grade[1] == grade[3] > grade[2] == grade[4]
    # The levels are told apart: the first guess of a round is right more often than it claims to be.
    assert len({grade[7], grade[1]}) == 2
    assert all(0 <= value < MAX_GRADES for value in grade.values())


def test_grades_follow_the_nodes_that_are_kept() -> None:
    trees = ConfidenceTrees(1, 2)
    trees.grow(level([UNSURE, UNSURE - 1, UNSURE - 2]), np.array([[[5, 6, 7]]]))
    (whole,) = trees.trees(3, [DraftBudget(3, 1)])
    (cut,) = trees.trees(2, [DraftBudget(2, 1)])
    assert whole.grades is not None
    assert cut.grades is not None
    np.testing.assert_array_equal(cut.grades, whole.grades[:2])


def test_unlikely_paths_are_left_out_and_end_the_tree() -> None:
    trees = ConfidenceTrees(1, 2, path_bounds(0.2))
    beams = trees.grow(level([math.log(0.6), math.log(0.3), math.log(0.1)]), np.array([[[5, 6, 7]]]))
    assert beams is not None
    # 0.3 stays, but is too close to the bound to be gone on from.
    assert beams.tokens.tolist() == [[5]]
    # 0.6 * 0.7 and 0.6 * 0.34 stay, 0.6 * 0.3 does not.
    beams = trees.grow(level([math.log(0.7), math.log(0.34), math.log(0.3)]), np.array([[[1, 2, 3]]]))
    assert beams is not None
    assert (beams.tokens.tolist(), beams.parents.tolist()) == ([[1]], [[0]])
    assert trees.grow(level([math.log(0.45)]), np.array([[[8]]])) is None
    (tree,) = trees.trees(9, [DraftBudget(9, 3)])
    assert tree.tokens.tolist() == [5, 6, 1, 2]


def test_sequences_that_are_less_sure_end_earlier_than_others_beside_them() -> None:
    both, alone = ConfidenceTrees(2, 2, path_bounds(0.2)), ConfidenceTrees(1, 2, path_bounds(0.2))
    sure, unsure = [math.log(0.6), math.log(0.35)], [math.log(0.4), math.log(0.1)]
    both.grow(np.array([[sure], [unsure]], np.float32), np.array([[[5, 6]], [[7, 8]]]))
    alone.grow(level(unsure), np.array([[[7, 8]]]))
    deeper = np.array([[sure, sure], [sure, sure]], np.float32)
    both.grow(deeper, np.array([[[1, 2], [3, 4]], [[1, 2], [3, 4]]]))
    alone.grow(deeper[1:, :1], np.array([[[1, 2]]]))
    budgets = [DraftBudget(9, 3)]
    assert both.trees(9, budgets * 2)[1].tokens.tolist() == alone.trees(9, budgets)[0].tokens.tolist() == [7, 1]
