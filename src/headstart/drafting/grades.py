"""Classes of confidence that guesses are counted in: a drafter's own, or else their places in the tree."""

from __future__ import annotations

from headstart.passes.draft_tree import MAX_GRADES, ROOT, DraftTree

_RANKS = 8


def grades_of(tree: DraftTree) -> list[int]:
    """[node] the drafter's own grades, or else one for each depth and rank among siblings."""
    if tree.grades is not None:
        own: list[int] = tree.grades.tolist()
        return own
    ranks = [0] * (len(tree) + 1)
    grades = []
    depths: list[int] = []
    for parent in tree.parents.tolist():
        depth = 1 if parent == ROOT else depths[parent] + 1
        depths.append(depth)
        grades.append(grade_of_place(depth, ranks[parent]))
        ranks[parent] += 1
    return grades


def grade_of_place(depth: int, rank: int) -> int:
    """The grade of the ``rank``-th child at a depth (1: of the root), where a drafter has no classes of its own."""
    return min(depth - 1, MAX_GRADES // _RANKS - 1) * _RANKS + min(rank, _RANKS - 1)
