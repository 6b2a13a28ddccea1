"""What a round costs, and how many guesses are worth verifying in it: the tree form of Theorem 3.8 (Leviathan et al.
2023) with measured costs (docs/exactness.md 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.drafting.base import DraftBudget
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.pass_costs import PassCosts, Recent


@dataclass(frozen=True, slots=True)
class TreeSize:
    """How many nodes are verified in a round, over all sequences."""

    nodes: int
    per_row: float = 0.0
    """Seconds for each of them."""


class RoundCosts:
    """Measured costs: of passes by their rows, and of the rest of a round."""

    def __init__(self) -> None:
        self.passes = PassCosts()
        self._other, self._min_probability = Recent(), Recent()
        self._said = self._taken = 0.0
        """Tokens of the latest rounds, and seconds."""

    @property
    def other_seconds(self) -> float:
        """Seconds of a round that are neither its pass nor its drafts."""
        return self._other.value

    def budgets(self, given: Sequence[DraftBudget]) -> list[DraftBudget]:
        """What a drafter is asked for: no path that is less likely than what a row costs, in tokens that are said
        meanwhile."""
        return [replace(each, min_probability=self._min_probability.value or None) for each in given]

    def add(self, rows: int, pass_seconds: float, row_keys: float, other: float) -> None:
        """A round that read no prompts is over: rows, seconds and row-keys of its pass, and seconds of everything but
        the pass and the drafts."""
        self.passes.add(rows, pass_seconds, row_keys)
        self._other.add(other)

    def said(self, tokens: int, seconds: float, row_seconds: float) -> None:
        """It said so many tokens in so many seconds, of which each verified guess took ``row_seconds``; 0: none was."""
        self._said += tokens - self._said / c.PACE_MEMORY
        self._taken += seconds - self._taken / c.PACE_MEMORY
        if row_seconds:
            least = row_seconds * self._said / self._taken
            self._min_probability.add(min(max(least, c.LEAST_PROBABLE), c.MOST_PROBABLE))

    def size(self, roots: int, reach: Sequence[float], context: float) -> TreeSize:
        """As many nodes as make the most expected tokens per second, and none for next to nothing; ``reach`` lists
        their reach in falling order."""
        if not self.passes.known:
            return TreeSize(min(len(reach), max(c.UNTIMED_ROWS - roots, 0)))
        passes, other = self.passes.seconds(roots, roots + len(reach), context), self._other.value
        tokens, count = float(roots), 0
        said, taken = tokens * c.LEAST_GAIN, passes[0] + other
        # Not strict: ``passes`` ends where passes would be much larger than any timed so far.
        for node, (chance, seconds) in enumerate(zip(reach, passes[1:], strict=False), start=1):
            tokens += chance
            if tokens * taken > said * (seconds + other):
                said, taken, count = tokens, seconds + other, node
        return TreeSize(count, (passes[count] - passes[0]) / count) if count else TreeSize(0)
