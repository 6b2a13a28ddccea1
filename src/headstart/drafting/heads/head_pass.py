"""What drafters ask of whatever computes an EAGLE head, and the small parts that heads are computed with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.drafting.heads.text_vocabulary import TextRowSource, TextTokens
from headstart.passes.batch import IntArray


class DraftCache(ABC):
    """Keys and values of one sequence in the head's layer: rows that are true, then those of a growing draft."""

    rows: int = 0
    first: int = 0
    """Place in the text of the first row."""

    def truncate(self, rows: int) -> None:
        """Keep the first rows."""
        self.rows = rows

    def begin(self, first: int) -> None:
        """Forget all rows; the next one stands at this place of the text."""
        self.truncate(0)
        self.first = first

    @abstractmethod
    def drop(self, rows: int) -> int:
        """Free about so many of the first rows, whole blocks of them and never more; how many they were."""

    @abstractmethod
    def extend(self, other: DraftCache, first: int, count: int) -> None:
        """Append copies of ``count`` rows of another cache of the same head, from its row ``first`` on.

        Rows know their place in the text: an empty cache begins at that of the first, a row that is appended stands
        behind the last one.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the memory back; nothing is kept."""


@dataclass(frozen=True)
class DraftRows:
    """The rows of one sequence in a step, after those in its cache."""

    cache: DraftCache
    count: int
    paths: IntArray | None = None
    """int32 [row, level] rows of the draft that a row sees besides all true ones, counted from the draft's first row:
    from the first level down to the row itself. None: true rows, each of which sees every row before it."""

    @property
    def true_rows(self) -> int:
        """Of the cache as it stands before the step."""
        return self.cache.rows - (0 if self.paths is None else int(self.paths[0, -1]))

    @property
    def places(self) -> range | list[int]:
        """[row] behind the first row of the cache: as many as the sequence has true rows or levels there."""
        if self.paths is None:
            return range(self.cache.rows, self.cache.rows + self.count)
        return [self.true_rows + self.paths.shape[1] - 1] * self.count

    @property
    def positions(self) -> list[int]:
        """[row] in the text."""
        return [self.cache.first + place for place in self.places]


class DraftRoot(NamedTuple):
    """Where the draft of one sequence begins, and how far it may grow."""

    cache: DraftCache
    tokens: IntArray
    """int32 [row] after each of the true rows that the cache lacks, at least one."""
    features: NDArray[np.float32]
    """[row, taps * target hidden] the target's states there."""
    nodes: int
    depth: int
    text_tokens: TextTokens | None = None
    """Tokens that it may say beyond the head's vocabulary."""


class GrownTree(NamedTuple):
    """The likeliest paths of a head, merged; parents come before their children."""

    tokens: IntArray
    """int32 [node] target ids."""
    parents: IntArray
    """int32 [node], -1 for children of the root."""
    scores: NDArray[np.float32]
    """[node] log-probability of the path."""


RowScores = Callable[[int, Tensor, int], Tensor]
"""Place of a root, float32 logits [beam, column], depth of the tokens -> scores of that shape to go by instead. Columns
are the draft vocabulary and as many text tokens as the root with most of them has, -inf where a root has none."""


class PathBounds(NamedTuple):
    """How likely a head must hold a path, as log-probabilities (``min_probability``)."""

    min_log_prob: float
    """Of a path that is kept."""
    min_parent_log_prob: float
    """Of one that is gone on from."""


class StateRecorder(Protocol):
    """Keeps the target's states in a stretch, for one sequence."""

    @property
    def features(self) -> NDArray[np.float32]:
        """[row, taps * target hidden] of the positions that came."""
        ...


class HeadGrower(Protocol):
    """Grows a head's trees in a stretch, for one sequence; what it says of itself changes with the rounds."""

    @property
    def known(self) -> int:
        """Positions whose true states have come."""
        ...

    @property
    def read(self) -> int:
        """True rows in the cache."""
        ...

    @property
    def features(self) -> NDArray[np.float32]:
        """[row, taps * target hidden] of the last known positions, as many as are held."""
        ...


class Growth(Protocol):
    """Whole drafts in one call."""

    def grow(self, roots: Sequence[DraftRoot], bounds: PathBounds, scores: RowScores | None) -> list[GrownTree]:
        """Read the true rows, then grow a tree for each root from its likeliest paths, as ``ConfidenceTrees`` does; as
        ``likeliest_paths`` does where one pass says all depths.

        The rows of the drafts are forgotten, the true ones stay.

        Args:
            bounds: which paths are kept, and which are gone on from.
            scores: None: the logits as they are.
        """
        ...


@runtime_checkable
class StretchGrowth(Growth, Protocol):
    """The same in compiled code, which takes part in stretches, too."""

    def growers(
        self,
        roots: Sequence[DraftRoot],
        bounds: PathBounds,
        grades: Sequence[float],
        room: Sequence[int],
    ) -> Sequence[HeadGrower]:
        """What a head brings to a stretch of rounds, one a sequence (see ``headstart.passes.rounds``).

        Args:
            roots: where the first drafts begin, and how far each of them may grow.
            bounds: as above.
            grades: ascending log-probabilities that part the grades of its guesses (``confidence_grades``).
            room: [sequence] positions that may follow.
        """
        ...

    def recorder(self, known: int, room: int) -> StateRecorder:
        """The same where it does not guess.

        Args:
            known: positions whose states have come.
            room: those that may follow.
        """
        ...


class CachingHeadPass(Protocol):
    """Runs a head that keeps keys and values of what it has read."""

    target_ids: Tensor
    """int64 [draft vocab] target id of each draft id."""

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        ...

    @property
    def row_bytes(self) -> int:
        """Of the keys and values of a row."""
        ...

    def new_cache(self) -> DraftCache:
        """An empty one."""
        ...

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        ...

    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens:
        """See ``TextTokens``; of no text yet."""
        ...


class HeadPass(CachingHeadPass, Protocol):
    """Runs an EAGLE head over rows of several sequences side by side."""

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """True rows: keys and values go to their caches.

        Args:
            tokens: [row] the token after each feature.
            features: [row, taps * target hidden] the target's states.

        Returns:
            After the last row of each group: the state to feed back [group, hidden], and float32 logits
            [group, draft vocab].
        """
        ...

    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """Rows of drafts, which read states [row, hidden] that were fed back: likewise, after every row."""
        ...

    def growth(self, width: int, ids: IntArray) -> Growth | None:
        """What grows whole drafts; None where they grow step by step.

        Args:
            width: nodes of a level that get children, and children of each of them.
            ids: int32 [draft vocab] target id of each draft id, -1 where the target has none.
        """
        ...


class ModulesPass(HeadPass, Protocol):
    """Runs the multi-token modules of a checkpoint."""

    text_eps: float | None
    """Of the last norm, where ``said_states`` are not normed."""

    @property
    def name(self) -> str:
        """What runs them, and in which precision."""
        ...

    def text_rows(self, vocab_size: int) -> TextRowSource | None:
        """Output rows of the target's tokens that they leave out; None: they say all ``vocab_size``."""
        ...

    def said_states(self, states: Tensor, level: int) -> Tensor:
        """[row, hidden] of the states that are fed back: those that say the tokens of a draft's ``level``, from 1."""
        ...


class MaskedHeadPass(CachingHeadPass, Protocol):
    """Runs an EAGLE head that guesses several tokens in one pass."""

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        ...

    def guess(
        self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows], slots: int
    ) -> tuple[Tensor, Tensor]:
        """The same, with masks behind the true rows of each group, which leave nothing behind.

        Args:
            slots: how many guesses are wanted, the first of them by the last true row.

        Returns:
            States that say them [group, slot, hidden], and float32 logits [group, slot, draft vocab].
        """
        ...

    def growth(self, width: int, ids: IntArray) -> Growth | None:
        """What makes whole drafts of one pass; None where that is left to the drafter.

        Args:
            width: best tokens of each depth that may be guessed.
            ids: as of ``HeadPass``.
        """
        ...


class BlockHeadPass(CachingHeadPass, Protocol):
    """Runs a block head beside sequences whose states it has read."""

    slots: int
    """Tokens that a block guesses."""
    chained: bool
    """What a block says of a token depends on the one before it, too (``following``)."""
    confident: bool
    """It says how likely guesses are accepted (``confidence``)."""

    def read(self, features: Tensor, groups: Sequence[DraftRows]) -> None:
        """True rows: keys and values of the target's states [row, taps * target hidden] go to their caches."""
        ...

    def block(self, roots: IntArray, caches: Sequence[DraftCache], slots: int) -> tuple[Tensor, Tensor]:
        """One block for each sequence, after the rows of its cache, which stays as it is.

        Args:
            roots: int32 [sequence] the tokens after the last states.
            slots: how many guesses are wanted, from the first on.

        Returns:
            States that say them [sequence, slot, hidden], and float32 logits [sequence, slot, draft vocab].
        """
        ...

    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """How likely guesses are accepted if those before them were, where it is ``confident``.

        Args:
            states: [row, hidden] that say them.
            tokens: int64 [row] target ids of the tokens before them.

        Returns:
            float32 [row].
        """
        ...

    def following(self, tokens: Tensor, states: Tensor) -> Tensor:
        """What is added to the logits of the tokens after these, where they are ``chained``.

        Args:
            tokens: int64 [row] target ids.
            states: [row, hidden] that say what comes after them.

        Returns:
            float32 [row, draft vocab].
        """
        ...

    def growth(self, width: int, ids: IntArray, ends: bool) -> Growth | None:
        """What makes whole drafts of one pass; None where that is left to the drafter.

        Args:
            width: best tokens of each depth that may be guessed, or where they are ``chained`` as of ``HeadPass``.
            ids: as of ``HeadPass``.
            ends: a head that is ``confident`` ends drafts, where the chain of its best guesses is less likely to be
                accepted than a path must be.
        """
        ...
