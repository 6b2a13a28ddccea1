"""How far a drafter's confidence can be trusted: what it said of its guesses, and how many of them were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.passes.draft_tree import ROOT, DraftTree

BINS = 10


_NOTHING = (0,) * BINS


@dataclass(frozen=True)
class Reliability:
    """Guesses that were verified and whose parent was accepted, in bins by their predicted chance.

    Guo et al. 2017 (arXiv:1706.04599), section 2.
    """

    counts: tuple[int, ...] = _NOTHING
    """[bin] guesses, of predicted chances from bin / 10 to (bin + 1) / 10."""
    predicted: tuple[float, ...] = _NOTHING
    """[bin] sum of the predicted chances."""
    held: tuple[int, ...] = _NOTHING
    """[bin] guesses that were accepted."""

    @classmethod
    def of(cls, judged: Sequence[tuple[float, bool]]) -> Reliability:
        """Of guesses: (predicted chance, whether it was accepted)."""
        counts, predicted, held = [0] * BINS, [0.0] * BINS, [0] * BINS
        for chance, holds in judged:
            place = min(int(chance * BINS), BINS - 1)
            counts[place] += 1
            predicted[place] += chance
            held[place] += holds
        return cls(tuple(counts), tuple(predicted), tuple(held))

    def __add__(self, other: Reliability) -> Reliability:
        return Reliability(
            tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            tuple(map(sum, zip(self.predicted, other.predicted, strict=True))),
            tuple(map(sum, zip(self.held, other.held, strict=True))),
        )

    @property
    def guesses(self) -> int:
        return sum(self.counts)

    @property
    def means(self) -> list[float | None]:
        """[bin] mean predicted chance; None: no guess is in it."""
        return [sum_ / n if n else None for sum_, n in zip(self.predicted, self.counts, strict=True)]

    @property
    def frequencies(self) -> list[float | None]:
        """[bin] part of the guesses that was accepted, likewise."""
        return [held / n if n else None for held, n in zip(self.held, self.counts, strict=True)]

    @property
    def calibration_error(self) -> float:
        """Mean distance of predicted chance and frequency, bins weighed by their guesses (expected calibration error);
        0 without guesses."""
        apart = sum(abs(said - held) for said, held in zip(self.predicted, self.held, strict=True))
        return apart / max(self.guesses, 1)


def judged(draft: DraftTree, committed: Sequence[int]) -> list[tuple[float, bool]]:
    """Verified guesses of one round whose parent was accepted, as ``Reliability.of`` takes them; none where the drafter
    does not say how likely they are.

    Args:
        committed: tokens of the round.
    """
    if draft.chances is None:
        return []
    found, path = [], ROOT
    chances, tokens = draft.chances.tolist(), draft.token_list
    for token in committed:
        accepted = None
        for node in draft.children.get(path, ()):
            holds = tokens[node] == token
            found.append((chances[node], holds))
            if holds:
                accepted = node
        if accepted is None:
            break
        path = accepted
    return found
