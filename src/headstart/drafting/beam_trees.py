"""Trees for the beams of one search, chosen together as the search would choose (Leviathan et al. 2023, appendix A.4).

A beam step can be verified for free where all beams that come out of it were guessed. So what counts on a level is
that the best paths of the whole group are there, not that each beam's own are: a beam far behind has no child among
them. A drafter that knows how likely its guesses are searches with its own estimates, ``WIDER`` times as wide as the
search itself, for as many levels as its nodes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import BeamView, DraftBudget, SequenceView, beam_of
from headstart.passes.draft_tree import ROOT

WIDER = 3
"""How many paths of a level are guessed for each beam (docs/experiments/rounds.md, 0096)."""
LEAST = 0.003
"""Paths that are less likely than this after their beam are hardly ever among the group's best."""


def wide_budgets(sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftBudget]:
    """Budgets under which a beam may have all nodes of its group: for drafts that ``chosen_nodes`` then cuts."""
    return [
        budget
        if beam_of(sequence) is None or not budget.group_nodes
        else replace(budget, nodes=budget.group_nodes, min_probability=LEAST)
        for sequence, budget in zip(sequences, budgets, strict=True)
    ]


def groups_of(sequences: Sequence[SequenceView]) -> Iterator[tuple[BeamView, list[int]]]:
    """The groups among some sequences: what is known of one beam, and the places of all."""
    places: dict[int, list[int]] = {}
    for place, sequence in enumerate(sequences):
        beam = beam_of(sequence)
        if beam is not None:
            places.setdefault(beam.group, []).append(place)
    for own in places.values():
        beam = beam_of(sequences[own[0]])
        assert beam is not None
        yield beam, own


def chosen_nodes(
    sequences: Sequence[SequenceView],
    budgets: Sequence[DraftBudget],
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    scores: Sequence[Sequence[float]],
) -> dict[int, list[int]]:
    """What stays of the trees of beams, so that each group has no more nodes than it may have.

    Args:
        tokens: [sequence][node]; none that ends a path stays.
        parents: [sequence][node], in topological order.
        scores: [sequence][node] estimated log-probability of the path after the sequence.

    Returns:
        Place of a beam -> its nodes that stay, ascending; sequences that are no beams are not among them.
    """
    chosen: dict[int, list[int]] = {}
    for beam, places in groups_of(sequences):
        nodes = max(budgets[place].group_nodes for place in places)
        kept = {place: set[int]() for place in places}
        above = {(place, ROOT) for place in places}
        while above and nodes > 0:
            level = []
            for place in places:
                base = beam_of(sequences[place]).score  # type: ignore[union-attr]
                level += [
                    (-base - scores[place][node], place, node)
                    for node, parent in enumerate(parents[place])
                    if (place, parent) in above and tokens[place][node] not in beam.end_tokens
                ]
            level = sorted(level)[: min(WIDER * beam.width, nodes)]
            nodes -= len(level)
            above = {(place, node) for _, place, node in level}
            for place, node in above:
                kept[place].add(node)
        chosen |= {place: sorted(own) for place, own in kept.items()}
    return chosen


def kept_mask(nodes: Sequence[int], count: int) -> NDArray[np.bool_]:
    """[count] whether a node is among ``nodes``, as ``DraftTree.restricted_to`` takes it."""
    kept = np.zeros(count, dtype=np.bool_)
    kept[list(nodes)] = True
    return kept


def path_scores(parents: NDArray[np.signedinteger], log_probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """[node] log-probability of its path, from that of each node after its parent."""
    scores = log_probs.copy()
    for node, parent in enumerate(parents.tolist()):
        if parent != ROOT:
            scores[node] += scores[parent]
    return scores
