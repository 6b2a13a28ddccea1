from __future__ import annotations

import numpy as np

from headstart.drafting.grades import grades_of
from headstart.passes.draft_tree import ROOT, DraftTree


def test_a_drafters_own_grades_are_used_and_others_follow_depth_and_rank() -> None:
    tokens, parents = np.array([3, 4, 5], dtype=np.int32), np.array([-1, -1, 0], dtype=np.int32)
    assert len(set(grades_of(DraftTree(tokens, parents)))) == 3
    assert grades_of(DraftTree(tokens, parents, grades=np.array([9, 9, 7], dtype=np.int32))) == [9, 9, 7]
    wide = DraftTree(np.arange(40, dtype=np.int32), np.full(40, ROOT, dtype=np.int32))
    deep = DraftTree.chain(range(40))
    assert max(grades_of(wide) + grades_of(deep)) < 64
