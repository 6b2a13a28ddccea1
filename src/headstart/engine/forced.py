"""Guesses that cost nothing: what a constraint leaves no choice about, merged into whatever a drafter guesses."""

from __future__ import annotations

import numpy as np

from headstart.drafting.base import DraftBudget
from headstart.engine.constraint import Foreseeing, TokenConstraint
from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw

_MOST = 24
"""Tokens that are foreseen at one place."""
_LEAVES = 2
"""Ends of guessed paths behind which something is foreseen, those of the first paths."""


def with_forced(draft: DraftTree, constraint: TokenConstraint, budget: DraftBudget) -> DraftTree:
    """A draft with what is foreseen behind the root, and behind the ends of its first paths, within the budget.

    Deterministic drafts alone: what a draw was made from is nobody else's to add to. Nodes keep their places, further
    ones follow them. The same draft where the constraint cannot tell: what it says then is heard when it is verified.
    """
    try:
        return _grown(draft, constraint, budget)
    except Exception:
        return draft


def _grown(draft: DraftTree, constraint: TokenConstraint, budget: DraftBudget) -> DraftTree:
    if draft.law is not TreeLaw.POINT_MASS or draft.probe is not None or not isinstance(constraint, Foreseeing):
        return draft
    tokens, parents = draft.token_list.copy(), draft.parents.tolist()
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    inner = set(parents)
    leaves = [node for node in range(len(tokens)) if node not in inner][:_LEAVES]
    for start in (ROOT, *leaves):
        path = [] if start == ROOT else [tokens[node] for node in draft.path_to(start)]
        room = min(budget.depth - len(path), _MOST)
        if room <= 0 or len(tokens) >= budget.nodes:
            continue
        node = start
        for token in constraint.foreseen(path, room):
            child = children.get((node, token))
            if child is None:
                if len(tokens) >= budget.nodes:
                    break
                child = children[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = child
    added = len(tokens) - len(draft)
    if not added:
        return draft
    return DraftTree(
        np.array(tokens, dtype=np.int32),
        np.array(parents, dtype=np.int32),
        grades=None if draft.grades is None else np.append(draft.grades, np.zeros(added, np.int32)),
        chances=None if draft.chances is None else np.append(draft.chances, np.ones(added)),
    )
