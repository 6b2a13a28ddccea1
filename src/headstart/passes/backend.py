"""The contracts of a backend: what computes passes, and what it hands out to run beside them.

Drafters ask ``DraftContext.kit`` for the latter, so that none of them knows a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from headstart.common.enumerations import CacheType
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.method import HeadPasses, RunsHead
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import EncoderInput, IntArray, KVStorage, PassBatch, PassOutput
from headstart.passes.rounds import Stretches
from headstart.sampling.kernels import RowKernels


@dataclass(frozen=True)
class TextBounds:
    """What an index of a text guesses at most, and how its guesses are graded."""

    max_depth: int
    """Tokens of a substring whose places are counted, and of a matched suffix and the path below it."""
    matches: Sequence[float]
    """Ascending bounds of the grades of guesses, by the tokens that matched before a guess."""
    ratios: Sequence[float]
    """Likewise, by how often it followed them."""
    factor: float
    """Nodes allowed for each matched token."""
    offset: float
    """Nodes allowed on top of that."""
    min_probability: float
    """No node is proposed below this estimate."""
    nodes: int
    """Of a tree at most."""


class TextIndex(Protocol):
    """A growing text, and guesses of what follows it by what followed its last tokens before."""

    @property
    def compiled(self) -> object:
        """What guesses in a stretch (``headstart.passes.rounds.Guesser``)."""
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

    def consult(self, other: object) -> None:
        """Guess from another index of the same kit, too, as from this text; what is appended to either counts.

        Raises:
            ConfigError: memory is short.
        """
        ...

    def guess(self, nodes: int, depth: int, path: Sequence[int] = ()) -> tuple[IntArray, IntArray, IntArray]:
        """Tokens, parents and grades of the best tree, [node] each, as ``DraftTree`` has them.

        Args:
            path: tokens that may come before it.

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

    def run(
        self, passes: HeadPasses[RunsHead], head: object, tables: TargetTables, precision: str, **wishes: int
    ) -> RunsHead:
        """What runs a trained head.

        Args:
            passes: of the head's method.
            head: weights, copied.
            tables: the target's; used where the head has none of its own.
            precision: of matrices and cache, "auto" for the fastest, or the target's where its own layers guess.
            wishes: of the method, which what runs the head may leave aside.

        Raises:
            ConfigError: the precision cannot be had for this head here.
        """
        ...

    def where(self, passes: HeadPasses[RunsHead], head: object) -> str:
        """What computes a trained head, as the end of "runs in"; where that is PyTorch, and why."""
        ...

    def text_index(self, bounds: TextBounds) -> TextIndex | None:
        """An index of a text that may take part in a stretch, empty; None: there is none here.

        Raises:
            ConfigError: memory is short.
        """
        ...


class Backend(Protocol):
    """A model that can run passes; see ``RunsStretches``, too; one whose ``config`` has an encoder is an
    ``EncoderBackend``."""

    config: ModelConfig
    name: str
    """Which path computes ("torch-fp32", "native-amx-bf16", ...), for records."""
    exact_rows: bool
    """A row has the same bits in every pass: alone or with others, chunked or not, as a chain or in a tree."""

    finds_best: bool
    """A row's best token can be had without its logits: the same as theirs."""

    opens_layers: bool
    """Its layers can be run in part, looked into below the last one, and given something else than tokens to read; so
    that drafters can be made of them, or trained on them."""

    kit: BackendKit
    """What runs beside its passes."""

    @property
    def nbytes(self) -> int:
        """Size of the weights in bytes."""
        ...

    def allocate_cache(self, num_blocks: int, block_size: int, num_states: int = 0) -> KVStorage:
        """Zero-filled storage (every slot finite).

        ``num_states``: slots of states, of a model that keeps any (``ModelConfig.keeps_states``).
        """
        ...

    def forward(self, batch: PassBatch, storage: KVStorage) -> PassOutput:
        """Run one pass: write the rows' keys and values, return the logits and taps asked for.

        It is over when it returns, on an accelerator too: passes are timed, and drafts planned by their times.
        """
        ...


class EncoderBackend(Backend, Protocol):
    """One with an encoder. Rows of its passes read the encoder memory of their sequence, too."""

    def encode(self, source: EncoderInput, storage: KVStorage, blocks: Sequence[int]) -> None:
        """Read an input and fill these physical blocks with its memory, in order: the same bits whatever else is read.

        What is behind the input's last position stays as it is.
        """
        ...


@runtime_checkable
class KeepsFewBits(Protocol):
    """A backend that has ``cache_types`` beside ``AUTO``."""

    cache_types: tuple[CacheType, ...]

    def allocate_cache(
        self, num_blocks: int, block_size: int, num_states: int = 0, cache_type: CacheType = CacheType.AUTO
    ) -> KVStorage: ...


@runtime_checkable
class RunsStretches(Protocol):
    """A backend that can run several rounds at once."""

    stretches: Stretches


@runtime_checkable
class GuessesForItself(Protocol):
    """A backend of other weights of a model, whose passes take that model's cache."""

    def guesser(self, depth: int) -> object:
        """What guesses chains of so many tokens in the model's stretches (``passes.rounds.Guesser``)."""
        ...


class KeyReader(Protocol):
    """A small decoder that keeps nothing: its layers read keys and values of another model's (``LayerConfig.reads``).

    Each of its rows stands on the position of a sequence's root, and sees what the sequence has in the cache.
    """

    @property
    def nbytes(self) -> int:
        """Of its weights."""
        ...

    def read(
        self, inputs: Tensor, cached_lengths: IntArray, block_tables: IntArray, storage: KVStorage, *, says: bool
    ) -> tuple[Tensor, Tensor]:
        """One pass over rows that do not see each other.

        Args:
            inputs: [row, hidden] what the first layer reads.
            cached_lengths: int32 [row] tokens of the row's sequence in the cache, one or more.
            block_tables: int32 [row, block] as ``PassBatch`` has them.
            storage: the other model's.
            says: logits are wanted.

        Returns:
            float32 states [row, hidden] after the final norm, and logits [row, vocab], or none of them.
        """
        ...


@runtime_checkable
class LendsKeys(Protocol):
    """A backend whose caches other decoders can read."""

    def embedded(self, tokens: IntArray) -> Tensor:
        """float32 [row, hidden] what the first layer reads of these tokens, wherever they stand."""
        ...

    def key_reader(self, config: ModelConfig, weights: DecoderWeights, precision: str) -> KeyReader:
        """What runs a decoder that reads this one's keys and values.

        Args:
            config: all of its layers read layers of this backend's model.
            precision: of its matrices; "auto": nearly the file's.

        Raises:
            ConfigError: the precision cannot be had here, or memory is short.
        """
        ...


@runtime_checkable
class RecordsPasses(Protocol):
    """A backend that records a pass when one of its shape comes again."""

    unrecorded: int
    """Passes of a shape that take longer than all others: those before it is recorded, and that which records it."""
