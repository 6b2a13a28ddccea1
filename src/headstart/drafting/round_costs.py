"""What a round costs, and how many guesses are worth verifying in it: the tree form of Theorem 3.8 (Leviathan et al.
2023) with measured costs (methods-exact C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.drafting.pass_costs import PassCosts, Recent

BESIDE_PROMPTS = 0.55
"""What a token is worth in a pass that reads prompts, of its share in the passes to come: one sequence gets ahead, the
passes go on for the others, whose first tokens wait. Its own rows at least, some third of its share, are saved."""
_UNTIMED_ROWS = 16
"""Rows of a pass, roots included, while nothing is known of the costs: one tile."""
_PLAIN_EVERY = 256
"""Passes after which plain decoding is timed again: one pass in so many is plain where guessing pays."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What is verified in a round, and what is expected of it, over all sequences."""

    nodes: int
    tokens: float = 0.0
    """Roots included."""
    seconds: float = 0.0
    """0: what passes cost is not known."""
    per_row: float = 0.0
    """Seconds for each of the nodes."""

    def worth(self, gain: float, rows: int) -> float:
        """Seconds that some of the nodes save: what their tokens would take without them, less their rows'."""
        row_seconds = rows * self.per_row
        return gain * (self.seconds - row_seconds) / (self.tokens - gain) - row_seconds


class RoundCosts:
    """Passes by their rows, what a round takes beside its pass, and what rows cost beside prompts."""

    def __init__(self) -> None:
        self.passes = PassCosts()
        self._round, self._other = Recent(), Recent()
        self._prompt_row_seconds = 0.0
        """Of passes that read prompts."""

    @property
    def round_seconds(self) -> float:
        """Of a round, drafts not counted."""
        return self._round.value

    def add(self, rows: int, pass_seconds: float, row_keys: float, other: float) -> None:
        """A round that read no prompts is over.

        Args:
            rows: of its pass.
            pass_seconds: the pass took.
            row_keys: as in ``PassCosts``.
            other: seconds for all but the pass and the drafts.
        """
        self.passes.add(rows, pass_seconds, row_keys)
        self._other.add(other)
        self._round.add(pass_seconds + self._other.value)

    def read_prompts(self, rows: int, seconds: float) -> None:
        """A pass that read prompts is over."""
        self._prompt_row_seconds = seconds / rows

    def size(self, roots: int, reach: Sequence[float], context: float) -> TreeSize:
        """How many nodes to verify, of those whose reach, or a share of it, is given in falling order."""
        if not self.passes.known:
            return TreeSize(min(len(reach), max(_UNTIMED_ROWS - roots, 0)))
        if reach and self.passes.stale(roots, _PLAIN_EVERY):
            return TreeSize(0)
        passes, other = self.passes.seconds(roots, roots + len(reach), context), self._other.value
        tokens, count = float(roots), 0
        said, taken = tokens, passes[0] + other
        # Never more nodes than passes: those beyond are too many to try.
        for node, (chance, seconds) in enumerate(zip(reach, passes[1:], strict=False), start=1):
            tokens += chance
            if tokens * taken > said * (seconds + other):
                said, taken, count = tokens, seconds + other, node
        return TreeSize(count, said, taken, (passes[count] - passes[0]) / count if count else 0.0)

    def nodes_beside_prompts(self, sequences: int, reach: Sequence[float]) -> int:
        """The same in a pass that reads prompts: there a row costs what a prompt's does, and an accepted guess saves
        what a token takes in the rounds to come, which all sequences share, those whose prompts are read included."""
        per_token = self._token_seconds(sequences)
        return sum([chance * per_token > self._prompt_row_seconds for chance in reach])

    def may_pay_beside_prompts(self, sequences: int) -> bool:
        """Whether a guess that is sure would be verified there."""
        return self._token_seconds(sequences) * BESIDE_PROMPTS > self._prompt_row_seconds

    def _token_seconds(self, sequences: int) -> float:
        """Of plain decoding where so many share a pass; 0: not known."""
        if not self.passes.known:
            return 0.0
        passes = self.passes.seconds(1, sequences)
        return (passes[-1] + self._other.value) / len(passes)
