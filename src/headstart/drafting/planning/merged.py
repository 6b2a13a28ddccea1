"""Guesses of several drafters in one tree, each with an estimate of how likely it is to be accepted.

All guesses are verified as point masses: their tree may be pruned and re-ranked at will, and is worth the sum over
its nodes of the probability that the target's path passes through them (docs/exactness.md 5, 10). Trees that are to be
verified as draws are never merged: that would change their law.

A round merges some tens of nodes, too few for arrays: plain lists are several times faster here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

    def ranked(self, count: int) -> list[int]:
        """The ``count`` nodes of highest reach, the highest first: a tree, and none of that size is worth more."""
        reach = self.reach
        return sorted(range(len(reach)), key=reach.__getitem__, reverse=True)[:count]

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
            chances=np.array([self.chances[node] for node in kept]),
        )


NOTHING = MergedGuesses([], [], [], [], [])


class Overlay:
    """Guesses of several drafters for one sequence, with a bit for each, in one prefix tree.

    Attributes:
        places: [drafter][guess] its node.
    """

    def __init__(self, proposals: Sequence[tuple[int, Guesses]]) -> None:
        self._proposals = proposals
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._owners: list[int] = []
        """[node] who guessed it: a bit for each drafter."""
        self.places: list[list[int]] = []
        nodes: dict[tuple[int, int], int] = {}
        for bit, guesses in proposals:
            place: list[int] = []
            for token, parent in zip(guesses.tokens, guesses.parents, strict=True):
                above = ROOT if parent == ROOT else place[parent]
                node = nodes.setdefault((above, token), len(self._tokens))
                if node == len(self._tokens):
                    self._tokens.append(token)
                    self._parents.append(above)
                    self._owners.append(0)
                self._owners[node] |= bit
                place.append(node)
            self.places.append(place)

    def related(self) -> list[Guesses]:
        """[drafter] its guesses, with what the others say in their place in the grades.

        Drafters that read the same text are right together: where the one that copies and the head agree, nine of ten
        guesses hold, and of those that it makes against the head one of eight (docs/experiments/planner.md, 0090).
        """
        heard: dict[int, int] = {}  # node -> who guesses anything after it
        for parent, owners in zip(self._parents, self._owners, strict=True):
            heard[parent] = heard.get(parent, 0) | owners
        related = []
        for (own, guesses), nodes in zip(self._proposals, self.places, strict=True):
            grades = []
            for grade, node in zip(guesses.grades, nodes, strict=True):
                contradicted = heard[self._parents[node]] != own
                grades.append(grade + (AGREED if self._owners[node] != own else CONTRADICTED if contradicted else 0))
            related.append(replace(guesses, grades=grades))
        return related

    def merged(self, chances: Sequence[Sequence[float]]) -> MergedGuesses:
        """All of them in one tree, with the reach of each.

        Where drafters agree on a token, it gets the mean of their estimates. Where they differ, each is taken at its
        word, unless the chances of one parent's children add up to more than 1: then they are scaled down to that.

        Args:
            chances: [drafter][guess] estimated probability that the target says it, its parent given.
        """
        means = [0.0] * len(self._tokens)
        for own, nodes in zip(chances, self.places, strict=True):
            for chance, node in zip(own, nodes, strict=True):
                means[node] += chance / self._owners[node].bit_count()
        scaled = _scaled(self._parents, means)
        reach: list[float] = []
        for chance, parent in zip(scaled, self._parents, strict=True):
            reach.append(chance if parent == ROOT else chance * reach[parent])
        return MergedGuesses(self._tokens, self._parents, self._owners, scaled, reach)


def _scaled(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    """Chances of each parent's children that add up to no more than 1."""
    totals: dict[int, float] = {}
    for parent, chance in zip(parents, chances, strict=True):
        totals[parent] = totals.get(parent, 0.0) + chance
    return [
        min(chance / max(1.0, totals[parent]), c.MOST_CERTAIN) for parent, chance in zip(parents, chances, strict=True)
    ]
