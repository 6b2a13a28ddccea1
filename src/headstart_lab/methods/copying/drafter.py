"""Input copying (Sun et al. 2021, "Instantaneous Grammatical Error Correction with Shallow Aggressive Decoding").

For tasks whose output repeats most of the input: the whole rest of the input is the draft. After a mismatch the
output is decoded singly until a suffix of it stands at exactly one place of the input; the draft resumes behind
that place. The input is the prompt; what the encoder reads, where the target has one, as the paper's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.history import HistoryDrafter
from headstart.drafting.options import require
from headstart.passes.draft_tree import DraftTree

_LONGEST_MATCH = 64
"""A suffix that stands at several places is not looked at any further: it hardly gets unique, and costs time."""


@dataclass(frozen=True)
class CopyOptions:
    draft_tokens: int = 15
    """Tokens of a draft at most (with the root one tile of 16 rows)."""
    min_match: int = 1
    """Tokens of the output that must match before the draft resumes, at most 64."""
    from_start: bool = True
    """The first draft is the beginning of the input, as in the paper; False waits for a match."""

    def __post_init__(self) -> None:
        require(self.draft_tokens >= 1, f"draft_tokens is {self.draft_tokens}; it must be 1 or more.")
        require(
            1 <= self.min_match <= _LONGEST_MATCH,
            f"min_match is {self.min_match}; it must lie in [1, {_LONGEST_MATCH}].",
        )


class InputCopy:
    """Where in the input one sequence's output stands."""

    def __init__(self, source: Sequence[int], options: CopyOptions) -> None:
        self._input = np.asarray(source, dtype=np.int64)
        ids, starts = np.unique(np.sort(self._input), return_index=True)
        places = np.split(np.argsort(self._input, kind="stable"), starts[1:])
        self._places: dict[int, NDArray[np.int64]] = dict(zip(ids.tolist(), places, strict=True)) if len(ids) else {}
        self._min_match = options.min_match
        self._next: int | None = 0 if options.from_start else None
        self._tokens: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Follow further tokens, the input's first."""
        first = max(len(self._tokens), len(self._input))
        self._tokens.extend(tokens)
        for position in range(first, len(self._tokens)):
            place = self._next
            if place is not None and place < len(self._input) and self._tokens[place] == self._tokens[position]:
                self._next = place + 1
            else:
                self._next = self._behind_unique_match(position)

    def _behind_unique_match(self, position: int) -> int | None:
        """The place after the only match of an output suffix that ends at ``position``, if there is one."""
        places = self._places.get(self._tokens[position])
        if places is None:
            return None
        matched = 1
        while len(places) > 1 or (len(places) and matched < self._min_match):
            if matched == _LONGEST_MATCH or position - matched < len(self._input):
                return None
            places = places[places >= matched]
            places = places[self._input[places - matched] == self._tokens[position - matched]]
            matched += 1
        return int(places[0]) + 1 if len(places) else None

    def rest(self, limit: int) -> list[int]:
        """The next tokens of the input, at most ``limit``; empty while the place is unknown."""
        if self._next is None:
            return []
        return self._tokens[self._next : min(self._next + limit, len(self._input))]


class CopyDrafter(HistoryDrafter[InputCopy]):
    """A chain copied from the input."""

    Options = CopyOptions

    def __init__(self, context: DraftContext, options: CopyOptions) -> None:
        super().__init__()
        self._options = options

    def new_state(self, sequence: SequenceView) -> InputCopy:
        if sequence.source is None:
            return InputCopy(sequence.tokens[: sequence.prompt_length], self._options)
        state = InputCopy(sequence.source.copyable, self._options)
        state.extend(sequence.source.copyable)
        return state

    def begin(self, sequence: SequenceView) -> None:
        super().begin(sequence)
        if sequence.source is not None:
            # The token that every output begins with stands for nothing of the input.
            self._lengths[sequence.id] = 1

    def draft(self, state: InputCopy, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        return DraftTree.chain(state.rest(min(self._options.draft_tokens, budget.nodes, budget.depth)))
