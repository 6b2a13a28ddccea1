"""What a round costs, and how many guesses are worth verifying in it: the tree form of Theorem 3.8 (Leviathan et al.
2023) with measured costs (docs/exactness.md 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.drafting.base import DraftBudget
from headstart.drafting.planning.expert_calls import ExpertCalls
from headstart.drafting.planning.pass_costs import PassCosts, Recent

BESIDE_PROMPTS = 0.55
"""What a token is worth in a pass that reads prompts, as a part of its share of the passes to come. It is less than 1
because only one sequence gets ahead: the passes go on for the others, whose first tokens wait. At least the token's own
rows, about a third of its share, are saved."""
_UNTIMED_ROWS = 16
"""Rows of a pass, roots included, while nothing is known about costs: one tile."""
_PATH_SHARE = 0.75
"""How likely a path must be to be looked for, as a part of what pays for its row on average over a tree's rows: the
last rows of a tree cost less, and what is found is weighed again."""
_LOWEST_MIN_PROBABILITY, _HIGHEST_MIN_PROBABILITY = 0.025, 0.2
"""Bounds of the former. Looking for less likely paths costs a drafter more than they bring, whatever a row costs; and
where rows seem dear, a drafter must still be seen to guess what may pay when they are cheap again."""
PLAIN_EVERY = 256
"""Passes after which plain decoding is timed again, even if guessing pays."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """How many nodes are verified in a round, and what is expected from it, over all sequences."""

    nodes: int
    tokens: float = 0.0
    """Expected tokens, roots included."""
    seconds: float = 0.0
    """Expected time of the round; 0: the costs of passes are not known."""
    per_row: float = 0.0
    """Seconds for each of the nodes."""

    @property
    def pays(self) -> float | None:
        """The probability of a guess that is worth its row; None: nothing is verified, or no costs are known."""
        return self.per_row * self.tokens / self.seconds if self.nodes and self.seconds else None

    def worth(self, gain: float, rows: int) -> float:
        """Seconds that some of the nodes save: the time of their tokens without them, less the time of their rows."""
        row_seconds = rows * self.per_row
        return gain * (self.seconds - row_seconds) / (self.tokens - gain) - row_seconds


class RoundCosts:
    """Measured costs: of passes by their rows, of the rest of a round, and of rows in passes that read prompts.

    ``calls``: as in ``PassCosts``.
    """

    def __init__(self, calls: ExpertCalls | None = None) -> None:
        self.passes = PassCosts(calls)
        self._round, self._other, self._min_probability = Recent(), Recent(), Recent()
        self._prompt_row_seconds = 0.0
        """Seconds a row of the last pass that read prompts."""

    @property
    def round_seconds(self) -> float:
        """Seconds of a round without drafting."""
        return self._round.value

    def add(
        self,
        rows: int,
        pass_seconds: float,
        row_keys: float,
        other: float,
        size: TreeSize | None = None,
        experts: float | None = None,
    ) -> None:
        """A round that read no prompts is over.

        Args:
            rows: of its pass.
            pass_seconds: of its pass.
            row_keys: as in ``PassCosts``.
            other: seconds of everything but the pass and the drafts.
            size: that was chosen for it.
            experts: as in ``PassCosts``.
        """
        self.passes.add(rows, pass_seconds, row_keys, experts)
        if size is not None and size.pays is not None:
            self._min_probability.add(
                min(max(_PATH_SHARE * size.pays, _LOWEST_MIN_PROBABILITY), _HIGHEST_MIN_PROBABILITY)
            )
        self._other.add(other)
        self._round.add(pass_seconds + self._other.value)

    def read_prompts(self, rows: int, seconds: float) -> None:
        """A pass that read prompts is over."""
        self._prompt_row_seconds = seconds / rows

    def size(self, roots: int, reach: Sequence[float], context: float) -> TreeSize:
        """How many nodes to verify; ``reach`` lists their reach, or a share of it, in falling order."""
        if not self.passes.known:
            return TreeSize(min(len(reach), max(_UNTIMED_ROWS - roots, 0)))
        if reach and self.passes.stale(roots, PLAIN_EVERY):
            return TreeSize(0)
        passes, other = self.passes.seconds(roots, roots + len(reach), context), self._other.value
        tokens, count = float(roots), 0
        said, taken = tokens, passes[0] + other
        # Not strict: ``passes`` ends where passes would be much larger than any timed so far.
        for node, (chance, seconds) in enumerate(zip(reach, passes[1:], strict=False), start=1):
            tokens += chance
            if tokens * taken > said * (seconds + other):
                said, taken, count = tokens, seconds + other, node
        if not count:
            return TreeSize(0, said, taken)
        return TreeSize(count, said, taken, (passes[count] - passes[0]) / count)

    @property
    def other_seconds(self) -> float:
        """Seconds of a round that are neither its pass nor its drafts."""
        return self._other.value

    @property
    def min_probability(self) -> float | None:
        """The probability below which a path is not worth looking for; None: rows were not timed yet."""
        return self._min_probability.value or None

    def budget(self, given: DraftBudget) -> DraftBudget:
        """What a drafter is asked for: no path that is not worth looking for."""
        return replace(given, min_probability=self.min_probability)

    def nodes_beside_prompts(self, sequences: int, reach: Sequence[float]) -> int:
        """The same in a pass that reads prompts. There a row costs as much as a prompt's row. An accepted guess saves
        the time of a token in the rounds to come, which all sequences share, also those whose prompts are read."""
        per_token = self._token_seconds(sequences)
        return sum([chance * per_token > self._prompt_row_seconds for chance in reach])

    def may_pay_beside_prompts(self, sequences: int) -> bool:
        """Whether a certain guess would be verified in such a pass."""
        return self._token_seconds(sequences) * BESIDE_PROMPTS > self._prompt_row_seconds

    def _token_seconds(self, sequences: int) -> float:
        """Seconds of a token in plain decoding when this many sequences share a pass; 0: not known."""
        if not self.passes.known:
            return 0.0
        passes = self.passes.seconds(1, sequences)
        return (passes[-1] + self._other.value) / len(passes)
