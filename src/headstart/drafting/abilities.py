"""What some drafters can do beyond the contract (``base.Drafter``), each a protocol of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from headstart.drafting.base import DraftBudget, Drafter, SequenceView
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits


@runtime_checkable
class Sized(Protocol):
    """Allocates weights or a cache when it is built, or fills a bounded store."""

    @property
    def nbytes(self) -> int:
        """Bytes of them."""
        ...


@runtime_checkable
class Plain(Protocol):
    """Decodes plainly: nothing is guessed for its sequences, not even what costs nothing."""

    plain: bool


@runtime_checkable
class RunsAnEncoder(Protocol):
    """May run a model with an encoder of its own."""

    @property
    def encoder_seconds(self) -> float:
        """What that encoder has taken so far; 0 where there is none."""
        ...


@runtime_checkable
class Graded(Protocol):
    """Grades its guesses, and has measured how often they hold."""

    grade_rates: Sequence[float]
    """[grade] a planner's first estimates."""


@runtime_checkable
class Continuing(Protocol):
    """Can guess what comes after guesses of others."""

    def proceed(self, sequence: SequenceView, path: Sequence[int], budget: DraftBudget) -> DraftTree:
        """Guesses behind tokens that may follow the root, as ``propose``; the empty tree where it has none."""
        ...


@runtime_checkable
class RunsInStretches(Protocol):
    """Can take part in rounds that are run at once."""

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """What it brings to them; None: it must be asked round by round."""
        ...


@runtime_checkable
class Forking(Protocol):
    """Can hand on what it knows of a sequence."""

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """A beam goes on from where another one stands, whose tokens it has. Called in place of ``begin``, after the
        draft and before the outcome of a round: both then hear an outcome of the same draft."""
        ...


def fork_or_begin(drafter: Drafter, source: SequenceView, sequence: SequenceView) -> None:
    """A beam that goes on from where ``source`` stands: both hold the same tokens."""
    if isinstance(drafter, Forking):
        drafter.fork(source, sequence)
    else:
        drafter.begin(sequence)


def bytes_of(drafter: Drafter) -> int:
    """Of the weights and caches that a drafter holds."""
    return drafter.nbytes if isinstance(drafter, Sized) else 0


def stretch_drafting(
    drafter: Drafter, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]
) -> StretchDrafting | None:
    """What a drafter brings to rounds that are run at once; None: it is asked round by round."""
    return drafter.stretch(sequences, limits) if isinstance(drafter, RunsInStretches) else None
