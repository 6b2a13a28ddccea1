"""Trees that grow from a head's confidence say how sure it was of each guess."""

from __future__ import annotations

import math

import numpy as np
import torch

from headstart.draft_tree import MAX_GRADES
from headstart.drafting.base import DraftBudget
from headstart.drafting.head_trees import ConfidenceTrees

SURE, UNSURE = math.log(0.97), math.log(0.03)


def test_guesses_are_graded_by_confidence_given_their_parent() -> None:
    trees = ConfidenceTrees(1, 2)
    first = torch.tensor([[[SURE, UNSURE]]])
    trees.grow(first, torch.tensor([[[7, 8]]]))
    # Below the sure guess the head is sure again, below the other one too.
    trees.grow(torch.tensor([[[SURE, UNSURE], [SURE, UNSURE]]]), torch.tensor([[[1, 2], [3, 4]]]))
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
    trees.grow(torch.tensor([[[UNSURE, UNSURE - 1, UNSURE - 2]]]), torch.tensor([[[5, 6, 7]]]))
    (whole,) = trees.trees(3, [DraftBudget(3, 1)])
    (cut,) = trees.trees(2, [DraftBudget(2, 1)])
    assert whole.grades is not None
    assert cut.grades is not None
    np.testing.assert_array_equal(cut.grades, whole.grades[:2])
