"""What a backend hands out besides its passes: whatever drafters and samplers run on the same machine.

Drafters ask ``DraftContext.kit`` for it, so that none of them knows a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headstart.models.backend import IntArray
from headstart.models.heads.eagle import EagleHead
from headstart.models.heads.head_pass import HeadPass
from headstart.models.heads.parallel import ParallelHeads, ParallelPass
from headstart.models.heads.tables import TargetTables
from headstart.sampling.kernels import RowKernels


class TextIndex(Protocol):
    """A growing text, and guesses of what follows it by what followed its last tokens before."""

    @property
    def part(self) -> object:
        """Its part in a stretch."""
        ...

    @property
    def learnt(self) -> int:
        """Tokens of the last stretch that it has appended."""
        ...

    def start_text(self) -> None:
        """What follows is a text of its own: no substring spans the border."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens.

        Raises:
            ConfigError: memory is short; the text is of no use then.
        """
        ...

    def guess(self, nodes: int, depth: int) -> tuple[IntArray, IntArray, IntArray]:
        """Tokens, parents and grades of the best tree, [node] each, as ``DraftTree`` has them.

        Raises:
            ConfigError: memory is short.
        """
        ...


class BackendKit(Protocol):
    """What runs beside the passes of one backend, on its device. One call at a time, from one thread."""

    @property
    def rows(self) -> RowKernels | None:
        """Compiled code for rows of logits; None: NumPy alone."""
        ...

    @property
    def has_cheap_rows(self) -> bool:
        """A pass of sixteen rows takes hardly longer than one of a single row, as with a matrix unit."""
        ...

    def head_pass(self, head: EagleHead, tables: TargetTables, precision: str) -> HeadPass:
        """What runs an EAGLE head.

        Args:
            head: weights, copied.
            tables: the target's; used where the head has none of its own.
            precision: of matrices and cache, "auto" for the fastest.

        Raises:
            ConfigError: the precision cannot be had for this head here.
        """
        ...

    def parallel_pass(self, heads: ParallelHeads, tables: TargetTables, precision: str) -> ParallelPass:
        """What runs heads that say several tokens at once, likewise.

        Raises:
            ConfigError: the precision cannot be had here.
        """
        ...

    def text_index(
        self,
        max_depth: int,
        *,
        matches: Sequence[float],
        ratios: Sequence[float],
        factor: float,
        offset: float,
        min_probability: float,
        nodes: int,
    ) -> TextIndex | None:
        """An index of a text that may take part in a stretch, empty; None: there is none here.

        Args:
            max_depth: tokens of a substring whose places are counted, and of a matched suffix and the path below it.
            matches: ascending bounds of the grades of guesses, by the tokens that matched before a guess.
            ratios: likewise, by how often it followed them.
            factor: nodes allowed for each matched token.
            offset: nodes allowed on top of that.
            min_probability: no node is proposed below this estimate.
            nodes: of a tree at most.

        Raises:
            ConfigError: memory is short.
        """
        ...
