"""Guesses of several drafters in one tree, each with an estimate of how likely it is to be accepted.

All guesses are verified as point masses: their tree may be pruned and re-ranked at will, and is worth the sum over
its nodes of the probability that the target's path passes through them (docs/exactness.md 5, 10). Trees that are to be
verified as draws are never merged: that would change their law.

A round merges some tens of nodes, too few for arrays: plain lists are several times faster here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headstart.drafting.grades import grades_of
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.guess_rates import AGREED, CONTRADICTED
from headstart.passes.draft_tree import ROOT, DraftTree


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

    def judge(self, said: Sequence[int]) -> list[tuple[int, bool]]:
        """Which guesses hold against the tokens that the target said after the root: (guess, whether it holds).

        A guess counts only where its parent was said. Guesses that never entered the verified tree are judged as well:
        what was said tells.
        """
        parents, tokens = self.parents, self.tokens
        judged: list[tuple[int, bool]] = []
        path, first = ROOT, 0
        for token in said:
            accepted = None
            for node in range(first, len(parents)):
                if parents[node] == path:
                    holds = tokens[node] == token
                    judged.append((node, holds))
                    if holds:
                        accepted = node
            if accepted is None:
                break
            path, first = accepted, accepted + 1
        return judged


@dataclass(frozen=True, slots=True)
class MergedGuesses:
    """The guesses of all drafters for one sequence in one tree, in topological order."""

    tokens: list[int]
    parents: list[int]
    owners: list[int]
    """[node] who guessed it: a bit for each drafter."""
    chances: list[float]
    """[node] estimated probability that the target says it, its parent given."""
    reach: list[float]
    """[node] estimated probability that the target's path passes through a node; falls along every path."""

    def likeliest(self) -> list[int]:
        """The nodes of the likeliest path, from the first level down to a leaf."""
        best: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            if parent not in best or self.reach[node] > self.reach[best[parent]]:
                best[parent] = node
        path, node = list[int](), ROOT
        while node in best:
            node = best[node]
            path.append(node)
        return path

    def extended(self, leaf: int, bit: int, more: Guesses, chances: Sequence[float]) -> MergedGuesses:
        """With one drafter's guesses behind a leaf.

        Args:
            chances: [guess] estimated probability that the target says it, its parent given.
        """
        first = len(self.tokens)
        parents = [leaf if parent == ROOT else first + parent for parent in more.parents]
        scaled = _scaled(parents, chances)
        reach = self.reach.copy()
        for chance, parent in zip(scaled, parents, strict=True):
            reach.append(chance * reach[parent])
        return MergedGuesses(
            self.tokens + more.tokens,
            self.parents + parents,
            self.owners + [bit] * len(parents),
            self.chances + scaled,
            reach,
        )

    def tree(self, nodes: Sequence[int]) -> DraftTree:
        """These nodes, the likeliest first, which hold all parents of theirs, as a draft.

        Depth first: rows of the likeliest path stand where they stay once they are accepted.
        """
        kept, parents = list[int](), list[int]()

        def grow(above: int, place: int) -> None:
            for node in nodes:
                if self.parents[node] == above:
                    kept.append(node)
                    parents.append(place)
                    grow(node, len(kept) - 1)

        grow(ROOT, ROOT)
        return DraftTree(
            np.array([self.tokens[node] for node in kept], dtype=np.int32),
            np.array(parents, dtype=np.int32),
            chances=np.array([self.chances[node] for node in kept]),
        )


NOTHING = MergedGuesses([], [], [], [], [])


class Rates(Protocol):
    """How likely guesses are accepted."""

    def __getitem__(self, grade: int, /) -> float:
        """That of this grade, given its parent."""


def merge(proposals: Sequence[tuple[int, Guesses, Rates]]) -> tuple[MergedGuesses, list[Guesses]]:
    """Guesses of several drafters for one sequence in one prefix tree.

    Where drafters agree on a token, it gets the mean of their estimates. Where they differ, each is taken at its word,
    unless the chances of one parent's children add up to more than 1: then they are scaled down to that. Drafters that
    read the same text are right together: where the one that copies and the head agree, nine of ten guesses hold, and
    of those that it makes against the head one of eight (docs/experiments/planner.md, 0090).

    Args:
        proposals: a bit for each drafter, its guesses and its rates.

    Returns:
        All of them, and each drafter's own with what the others say in their place in the grades.
    """
    tokens, parents, owners, places = list[int](), list[int](), list[int](), list[list[int]]()
    nodes: dict[tuple[int, int], int] = {}
    heard: dict[int, int] = {}  # node -> who guesses anything after it
    for bit, guesses, _ in proposals:
        place = list[int]()
        for token, parent in zip(guesses.tokens, guesses.parents, strict=True):
            above = ROOT if parent == ROOT else place[parent]
            node = nodes.setdefault((above, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(above)
                owners.append(0)
            owners[node] |= bit
            heard[above] = heard.get(above, 0) | bit
            place.append(node)
        places.append(place)
    means, related = [0.0] * len(tokens), list[Guesses]()
    for (bit, guesses, rates), place in zip(proposals, places, strict=True):
        grades = list[int]()
        for grade, node in zip(guesses.grades, place, strict=True):
            told = AGREED if owners[node] != bit else CONTRADICTED if heard[parents[node]] != bit else 0
            grades.append(grade + told)
            means[node] += rates[grade + told] / owners[node].bit_count()
        related.append(Guesses(guesses.tokens, guesses.parents, grades))
    scaled, reach = _scaled(parents, means), list[float]()
    for chance, parent in zip(scaled, parents, strict=True):
        reach.append(chance if parent == ROOT else chance * reach[parent])
    return MergedGuesses(tokens, parents, owners, scaled, reach), related


def _scaled(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    """Chances of each parent's children that add up to no more than 1."""
    totals: dict[int, float] = {}
    for parent, chance in zip(parents, chances, strict=True):
        totals[parent] = totals.get(parent, 0.0) + chance
    return [
        min(chance / max(1.0, totals[parent]), c.MOST_CERTAIN) for parent, chance in zip(parents, chances, strict=True)
    ]
