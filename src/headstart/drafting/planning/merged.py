"""Guesses of several drafters in one tree, each with an estimate of how likely it is to be accepted.

All guesses are verified as point masses: their tree may be pruned and re-ranked at will, and is worth the sum over
its nodes of the probability that the target's path passes through them (methods-exact A5, C). Trees that are to be
verified as draws are never merged: that would change their law.

A round merges some tens of nodes, too few for arrays: plain lists are several times faster here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.grades import grades_of
from headstart.drafting.planning.guess_rates import GuessRates

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
        """These nodes, which hold all parents of theirs, as a draft."""
        if not nodes:
            return DraftTree.empty()
        kept = sorted(nodes)
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        tokens, parents = self.tokens, self.parents
        return DraftTree(
            np.array([tokens[node] for node in kept], dtype=np.int32),
            np.array([place[parents[node]] for node in kept], dtype=np.int32),
        )


NOTHING = MergedGuesses([], [], [], [])


def merge(proposals: Sequence[tuple[int, Guesses, GuessRates]]) -> MergedGuesses:
    """Put the guesses of several drafters (their bits, guesses and rates) in one prefix tree and estimate the reach
    of each.

    Where drafters agree on a token, the surer one's estimate stands: they mostly agree because they read the same
    text, so that their errors come together. Where they differ, the likelier guess is taken at its word, and what the
    other drafter holds against it is scaled to the rest: the chances of one parent's children must not add up to more
    than 1.
    """
    proposals = [proposal for proposal in proposals if proposal[1].tokens]
    if not proposals:
        return NOTHING
    if len(proposals) == 1:
        ((bit, guesses, rates),) = proposals
        chances = [rates.rates[grade] for grade in guesses.grades]
        return MergedGuesses(guesses.tokens, guesses.parents, [bit] * len(chances), _reach(guesses.parents, chances))
    tokens: list[int] = []
    parents: list[int] = []
    chances = []
    owners: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    children: dict[int, list[int]] = {}
    for bit, guesses, rates in proposals:
        rate = rates.rates
        place: list[int] = []
        for token, parent, grade in zip(guesses.tokens, guesses.parents, guesses.grades, strict=True):
            above = ROOT if parent == ROOT else place[parent]
            node = nodes.setdefault((above, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(above)
                chances.append(rate[grade])
                owners.append(bit)
                children.setdefault(above, []).append(node)
            else:
                chances[node] = max(chances[node], rate[grade])
                owners[node] |= bit
            place.append(node)
    for siblings in children.values():
        if len(siblings) > 1:
            _share(siblings, chances, owners)
    return MergedGuesses(tokens, parents, owners, _reach(parents, chances))


def _reach(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    """[node] the product of the chances along its path."""
    reach: list[float] = []
    for chance, parent in zip(chances, parents, strict=True):
        certain = min(chance, _MOST_CERTAIN)
        reach.append(certain if parent == ROOT else certain * reach[parent])
    return reach


def _share(siblings: list[int], chances: list[float], owners: Sequence[int]) -> None:
    """Scale the chances of one parent's children down to what surer rivals leave."""
    siblings.sort(key=chances.__getitem__, reverse=True)
    for place in range(1, len(siblings)):
        node = siblings[place]
        claimed = sum([chances[other] for other in siblings[:place] if not owners[other] & owners[node]])
        if claimed:
            chances[node] *= max(0.0, 1.0 - claimed)
