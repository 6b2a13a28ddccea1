"""Guesses of several drafters in one tree, each with an estimate of how likely it is to be accepted.

All guesses are verified as point masses: their tree may be pruned and re-ranked at will, and is worth the sum over
its nodes of the probability that the target's path passes through them (methods-exact A5, C). Trees that are to be
verified as draws are never merged: that would change their law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.draft_tree import MAX_GRADES, ROOT, DraftTree

_RANKS = 8
_FIRST_RATE = 0.25
"""Of any guess before one was judged."""
_MOST_CERTAIN = 0.995


class GuessRates:
    """How often a drafter's guesses were accepted, given that those above them were, by grade.

    A guess counts only where its parent was on the target's path: acceptance is censored beyond the first refusal.

    Args:
        prior: where the rates start from: those of all sequences, for one sequence; None: nowhere.
        prior_weight: how many trials the prior is worth.
        memory: trials after which a grade's past counts half.
    """

    def __init__(self, prior: GuessRates | None, prior_weight: float, memory: float) -> None:
        self._prior = prior
        self._prior_weight = prior_weight
        self._memory = memory
        self._hits = [0.0] * MAX_GRADES
        self._trials = [0.0] * MAX_GRADES

    def count(self, grade: int, accepted: bool) -> None:
        """One guess was judged."""
        if self._prior is not None:
            self._prior.count(grade, accepted)
        self._hits[grade] += accepted
        self._trials[grade] += 1.0
        if self._trials[grade] > self._memory:
            self._hits[grade] /= 2
            self._trials[grade] /= 2

    def rate(self, grade: int) -> float:
        """The chance of a guess of this grade to be accepted, given its parent."""
        prior = _FIRST_RATE if self._prior is None else self._prior.rate(grade)
        return (self._hits[grade] + self._prior_weight * prior) / (self._trials[grade] + self._prior_weight)


def grades_of(tree: DraftTree) -> list[int]:
    """[node] the drafter's own grades, or else one for each depth and rank among siblings."""
    if tree.grades is not None:
        own: list[int] = tree.grades.tolist()
        return own
    ranks = [0] * (len(tree) + 1)
    grades = []
    depths: list[int] = []
    for parent in tree.parents.tolist():
        depths.append(1 if parent == ROOT else depths[parent] + 1)
        grades.append(min(depths[-1] - 1, MAX_GRADES // _RANKS - 1) * _RANKS + min(ranks[parent], _RANKS - 1))
        ranks[parent] += 1
    return grades


@dataclass(frozen=True)
class Guesses:
    """What one drafter proposed for one sequence: point masses, in topological order."""

    tokens: list[int]
    parents: list[int]
    grades: list[int]

    @classmethod
    def of(cls, tree: DraftTree) -> Guesses:
        """The guesses of a tree, its draws taken as the point masses they are once drawn; probe nodes are no guesses.

        Verified as a point mass a draw is accepted less often than by its own rule, and as exactly (methods-exact
        A5): it does not depend on the target's noise.
        """
        tokens, parents, grades = tree.tokens.tolist(), tree.parents.tolist(), grades_of(tree)
        if tree.probe is None:
            return cls(tokens, parents, grades)
        kept = np.flatnonzero(~tree.probe).tolist()
        place = {node: i for i, node in enumerate(kept)} | {ROOT: ROOT}
        return cls([tokens[i] for i in kept], [place[parents[i]] for i in kept], [grades[i] for i in kept])

    def judge(self, said: Sequence[int], rates: GuessRates) -> None:
        """Count which guesses hold against the tokens that the target said after the root.

        Guesses that never entered the verified tree are judged as well: what was said tells.
        """
        path, depth = ROOT, 0
        for node, parent in enumerate(self.parents):
            if parent == path and depth < len(said):
                accepted = self.tokens[node] == said[depth]
                rates.count(self.grades[node], accepted)
                if accepted:
                    self._rest_of_level(node + 1, path, rates)
                    path, depth = node, depth + 1

    def _rest_of_level(self, first: int, parent: int, rates: GuessRates) -> None:
        for node in range(first, len(self.parents)):
            if self.parents[node] == parent:
                rates.count(self.grades[node], False)


@dataclass(frozen=True)
class MergedGuesses:
    """The guesses of all drafters for one sequence in one tree, in topological order."""

    tokens: list[int]
    parents: list[int]
    reach: NDArray[np.float64]
    """[node] estimated probability that the target's path passes through a node; falls along every path."""

    def best(self, count: int) -> NDArray[np.int64]:
        """The ``count`` nodes of highest reach, ascending: a tree, and none of that size is worth more."""
        return np.sort(np.argsort(-self.reach, kind="stable")[:count])

    def tree(self, nodes: NDArray[np.int64]) -> DraftTree:
        """These nodes, which hold all parents of theirs, as a draft."""
        if not len(nodes):
            return DraftTree.empty()
        place = np.full(len(self.tokens) + 1, ROOT, dtype=np.int32)
        place[nodes] = np.arange(len(nodes), dtype=np.int32)
        tokens = np.asarray(self.tokens, dtype=np.int32)[nodes]
        return DraftTree(tokens, place[np.asarray(self.parents, dtype=np.int32)[nodes]])


def merge(proposals: Sequence[tuple[Guesses, GuessRates]]) -> MergedGuesses:
    """Put the guesses of several drafters in one prefix tree and estimate the reach of each.

    Where drafters agree on a token, it fails only if both are wrong (as if they erred independently). Where they
    differ, the likelier guess is taken at its word, and what the other drafter holds against it is scaled to the
    rest: the chances of one parent's children must not add up to more than 1.
    """
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    owners: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    for member, (guesses, rates) in enumerate(proposals):
        place: list[int] = []
        for token, parent, grade in zip(guesses.tokens, guesses.parents, guesses.grades, strict=True):
            above = ROOT if parent == ROOT else place[parent]
            chance = rates.rate(grade)
            node = nodes.setdefault((above, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(above)
                chances.append(chance)
                owners.append(1 << member)
            else:
                chances[node] = 1.0 - (1.0 - chances[node]) * (1.0 - chance)
                owners[node] |= 1 << member
            place.append(node)
    return MergedGuesses(tokens, parents, _reach(parents, chances, owners))


def _reach(parents: Sequence[int], chances: list[float], owners: Sequence[int]) -> NDArray[np.float64]:
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    for siblings in children.values():
        if len(siblings) > 1:
            siblings.sort(key=lambda node: -chances[node])
            for place, node in enumerate(siblings):
                claimed = sum([chances[other] for other in siblings[:place] if not owners[other] & owners[node]])
                chances[node] *= max(0.0, 1.0 - claimed)
    reach: list[float] = []
    for node, parent in enumerate(parents):
        reach.append(min(chances[node], _MOST_CERTAIN) * (1.0 if parent == ROOT else reach[parent]))
    return np.array(reach)
