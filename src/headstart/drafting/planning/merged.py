"""Guesses of several drafters in one tree, each with an estimate of how likely it is to be accepted.

All guesses are verified as point masses: their tree may be pruned and re-ranked at will, and is worth the sum over
its nodes of the probability that the target's path passes through them (docs/exactness.md 5, 10). Trees that are to be
verified as draws are never merged: that would change their law.

A round merges some tens of nodes, too few for arrays: plain lists are several times faster here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import AGREED, ALONE, CONTRADICTED, GuessRates

_MOST_CERTAIN = 0.995


@dataclass(frozen=True, slots=True)
class Guesses:
    """What one drafter proposed for one sequence: point masses, in topological order."""

    tokens: list[int]
    parents: list[int]
    grades: list[int]

    @classmethod
    def of(cls, tree: DraftTree) -> Guesses:
        """The guesses of a tree, its draws taken as the point masses they are once drawn; probe nodes are no guesses.

        Verified as a point mass a draw is accepted less often than by its own rule, and as exactly
        (docs/exactness.md 5): it does not depend on the target's noise.
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
        parents, tokens, grades = self.parents, self.tokens, self.grades
        path, first = ROOT, 0
        for token in said:
            accepted = None
            for node in range(first, len(parents)):
                if parents[node] == path:
                    holds = tokens[node] == token
                    rates.count(grades[node], holds)
                    if holds:
                        accepted = node
            if accepted is None:
                return
            path, first = accepted, accepted + 1


@dataclass(frozen=True, slots=True)
class MergedGuesses:
    """The guesses of all drafters for one sequence in one tree, in topological order."""

    tokens: list[int]
    parents: list[int]
    owners: list[int]
    """[node] who guessed it: a bit for each drafter."""
    reach: list[float]
    """[node] estimated probability that the target's path passes through a node; falls along every path."""

    def ranked(self, count: int) -> list[int]:
        """The ``count`` nodes of highest reach, the highest first: a tree, and none of that size is worth more."""
        reach = self.reach
        return sorted(range(len(reach)), key=reach.__getitem__, reverse=True)[:count]

    def tree(self, nodes: Sequence[int]) -> DraftTree:
        """These nodes, the likeliest first, which hold all parents of theirs, as a draft.

        Depth first: rows of the likeliest path stand where they stay once they are accepted.
        """
        if not nodes:
            return DraftTree.empty()
        children: dict[int, list[int]] = {}
        for node in nodes:
            children.setdefault(self.parents[node], []).append(node)
        kept: list[int] = []
        waiting = children[ROOT][::-1]
        while waiting:
            node = waiting.pop()
            kept.append(node)
            waiting += children.get(node, [])[::-1]
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        tokens, parents = self.tokens, self.parents
        return DraftTree(
            np.array([tokens[node] for node in kept], dtype=np.int32),
            np.array([place[parents[node]] for node in kept], dtype=np.int32),
        )


NOTHING = MergedGuesses([], [], [], [])


def relate(proposals: Sequence[Guesses]) -> list[Guesses]:
    """The drafters' guesses for one sequence, with what the others say in their place in the grades.

    Drafters that read the same text are right together: where the one that copies and the head agree, nine of ten
    guesses hold, and of those that it makes against the head one of eight (docs/experiments/0090).
    """
    tree = _Overlaid([(1 << place, guesses) for place, guesses in enumerate(proposals)])
    heard: dict[int, int] = {}  # node -> who guesses anything after it
    for parent, owners in zip(tree.parents, tree.owners, strict=True):
        heard[parent] = heard.get(parent, 0) | owners
    related = []
    for place, (guesses, nodes) in enumerate(zip(proposals, tree.places, strict=True)):
        own, grades = 1 << place, []
        for grade, node in zip(guesses.grades, nodes, strict=True):
            contradicted = heard[tree.parents[node]] != own
            grades.append(grade + (AGREED if tree.owners[node] != own else CONTRADICTED if contradicted else ALONE))
        related.append(Guesses(guesses.tokens, guesses.parents, grades))
    return related


def merge(proposals: Sequence[tuple[int, Guesses, GuessRates]]) -> MergedGuesses:
    """Put the guesses of several drafters (their bits, guesses and rates) in one prefix tree and estimate the reach
    of each.

    Where drafters agree on a token, it gets the mean of their estimates. Where they differ, each is taken at its word,
    unless the chances of one parent's children add up to more than 1: then they are scaled down to that.
    """
    tree = _Overlaid([(bit, guesses) for bit, guesses, _ in proposals])
    chances = [0.0] * len(tree.tokens)
    for (_, guesses, rates), nodes in zip(proposals, tree.places, strict=True):
        for grade, node in zip(guesses.grades, nodes, strict=True):
            chances[node] += rates.rates[grade] / tree.owners[node].bit_count()
    totals: dict[int, float] = {}
    for parent, chance in zip(tree.parents, chances, strict=True):
        totals[parent] = totals.get(parent, 0.0) + chance
    chances = [chance / max(1.0, totals[parent]) for parent, chance in zip(tree.parents, chances, strict=True)]
    return MergedGuesses(tree.tokens, tree.parents, tree.owners, _reach(tree.parents, chances))


class _Overlaid:
    """Guesses of several drafters, with a bit for each, in one prefix tree."""

    def __init__(self, proposals: Sequence[tuple[int, Guesses]]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.owners: list[int] = []
        """[node] who guessed it: a bit for each drafter."""
        self.places: list[list[int]] = []
        """[proposal][guess] its node."""
        nodes: dict[tuple[int, int], int] = {}
        for bit, guesses in proposals:
            place: list[int] = []
            for token, parent in zip(guesses.tokens, guesses.parents, strict=True):
                above = ROOT if parent == ROOT else place[parent]
                node = nodes.setdefault((above, token), len(self.tokens))
                if node == len(self.tokens):
                    self.tokens.append(token)
                    self.parents.append(above)
                    self.owners.append(0)
                self.owners[node] |= bit
                place.append(node)
            self.places.append(place)


def _reach(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    """[node] the product of the chances along its path."""
    reach: list[float] = []
    for chance, parent in zip(chances, parents, strict=True):
        certain = min(chance, _MOST_CERTAIN)
        reach.append(certain if parent == ROOT else certain * reach[parent])
    return reach
