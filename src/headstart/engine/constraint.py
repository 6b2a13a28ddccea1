"""What a sequence may say, token by token (the engine itself knows no grammar)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.passes.draft_tree import ROOT, DraftTree


class TokenConstraint(Protocol):
    """A language over tokens, and where in it the committed output stands. Guesses never change that state."""

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """[vocab] the tokens that may follow committed output and ``path``. After a forbidden token, or the end: all.

        Raises:
            RequestError: the language has become too complex to follow.
        """
        ...

    def allowed(self, path: Sequence[int]) -> int:
        """How many tokens of ``path`` may follow one another after the committed output."""
        ...

    def advance(self, token: int) -> None:
        """Take one committed token, which does not end the output. What is wrong shows at the next ``mask``."""
        ...


@runtime_checkable
class Forcing(Protocol):
    """A constraint that sometimes leaves a single token, whatever the model thinks of it."""

    def forced(self, path: Sequence[int]) -> int | None:
        """That token after ``path``; None: the model has a say."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A constraint that sometimes knows what comes next."""

    def foreseen(self, path: Sequence[int], most: int) -> list[int]:
        """At most so many tokens that leave the model no choice after ``path``, or nearly none."""
        ...


@runtime_checkable
class Waiting(Protocol):
    """A constraint that demands nothing for a while, whatever is said."""

    @property
    def free(self) -> int:
        """Tokens after the committed output for which that holds."""
        ...


def free_tokens(constraint: TokenConstraint | None) -> int | None:
    """Tokens for which a constraint demands nothing, whatever they are; None: there is no constraint."""
    if constraint is None:
        return None
    return constraint.free if isinstance(constraint, Waiting) else 0


@runtime_checkable
class Weighing(Protocol):
    """A constraint that looks at what the model thinks as well, and at nothing else that a pass may change."""

    def weighed(self, row: Tensor, path: Sequence[int]) -> Tensor:
        """Logits or log-probabilities [vocab] after committed output and ``path``, -inf already where ``mask`` forbids
        a token, with -inf for what else may not be said there."""
        ...


def prune(draft: DraftTree, constraint: TokenConstraint) -> DraftTree:
    """A draft without rows that could not matter: nothing after a forbidden guess is ever reached.

    Deterministic guesses go with what follows them. A draw stays, for what it was drawn from shapes the law after its
    rejection; only what follows it goes. A tree with probe nodes stays whole: its drafter counts on their places.
    """
    if draft.probe is not None or not len(draft):
        return draft
    allowed = np.zeros(len(draft), dtype=np.bool_)
    for leaf in set(range(len(draft))) - set(draft.parents.tolist()):
        path = draft.path_to(leaf)
        allowed[path[: constraint.allowed(draft.tokens[path].tolist())]] = True
    if draft.draws is None:
        return draft.restricted_to(allowed)
    return draft.restricted_to((draft.parents == ROOT) | allowed[draft.parents])
