"""Making tokens final."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from headstart.engine.law import TargetLaw
from headstart.engine.outputs import TokenOrigin
from headstart.engine.sequence import Sequence
from headstart.passes.draft_tree import ROOT

NO_GUESS = -2
"""Stands for the parent of a node that is no guess."""


def commit_tokens(
    sequence: Sequence, path: Seq[int], tokens: Seq[int], guesses: Seq[int | None], law: TargetLaw | None = None
) -> tuple[int, ...]:
    """Make a round's tokens final, up to the one that ends the sequence; what follows it is discarded.

    End-of-sequence tokens, stop tokens, stop strings and lengths are decided here alone. Counts acceptance.

    Args:
        path: accepted nodes of the draft, from the first level down.
        tokens: theirs, then the target's own.
        guesses: the drafter's first guess in the place of each of the tokens; None: it had none.
        law: read where the request wants log-probabilities.

    Returns:
        The committed tokens, at least one.
    """
    stats, wanted, last = sequence.stats, sequence.params.logprobs, len(path)
    drafted, kept = stats.drafted_per_position, stats.accepted_per_position
    for depth, (token, guess) in enumerate(zip(tokens, guesses, strict=True)):
        accepted = depth < last
        if wanted is not None:
            assert law is not None
            sequence.logprobs.append(law.logprobs(path[depth - 1] if depth else ROOT, token, wanted))
        sequence.origins.append(origin_of(accepted, guess is not None, depth))
        sequence.rejected.append(None if accepted else guess)
        sequence.commit(token)
        if guess is not None:
            count_at(drafted, depth)
        if accepted:
            stats.accepted += 1
            count_at(kept, depth)
        if sequence.finished:
            stats.unsaid += accepted
            break
    while len(kept) < len(drafted):
        kept.append(0)
    return tuple(tokens[: depth + 1])


def said_tokens(
    tokens: Seq[int], parents: Iterable[int], path: Seq[int], token: int
) -> tuple[list[int], list[int | None]]:
    """What a round says, and the drafter's first guess in the place of each token; None: it had none.

    Args:
        tokens: [node] of the tree that was verified.
        parents: [node] likewise, ``NO_GUESS`` for nodes that are no guesses.
        path: accepted nodes, from the first level down.
        token: the target's own after them.
    """
    first = dict[int, int]()
    for guess, parent in zip(tokens, parents, strict=True):
        first.setdefault(parent, guess)
    return [*[tokens[node] for node in path], token], [first.get(node) for node in (ROOT, *path)]


def origin_of(accepted: bool, guessed: bool, depth: int) -> TokenOrigin:
    """How a token came to be that a round has said as its ``depth``-th, from 0."""
    if accepted:
        return TokenOrigin.ACCEPTED
    if guessed:
        return TokenOrigin.CORRECTED
    return TokenOrigin.BONUS if depth else TokenOrigin.PLAIN


def count_at(counts: list[int], index: int) -> None:
    """One more at a place, which is the next one at most."""
    if index == len(counts):
        counts.append(0)
    counts[index] += 1
