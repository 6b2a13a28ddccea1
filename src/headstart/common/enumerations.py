"""Names that users choose from, each set once. Importing them imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeVar

from headstart.errors import ConfigError, meant

Name = TypeVar("Name", bound=StrEnum)


def named(kind: type[Name], option: str, name: str) -> Name:
    """What an option names.

    Raises:
        ConfigError: there is nothing of this name.
    """
    try:
        return kind(name)
    except ValueError:
        raise ConfigError(f"{option} is {name!r}; {meant(name, kind)}") from None


class EarlyStopping(StrEnum):
    """When beam search ends (``SamplingParams.early_stopping``), by the words of the command line."""

    YES = "yes"
    NO = "no"
    NEVER = "never"

    @property
    def value_of_params(self) -> bool | Literal["never"]:
        """As ``SamplingParams`` has it."""
        return "never" if self is EarlyStopping.NEVER else self is EarlyStopping.YES


class Precision(StrEnum):
    """What a model is computed in. A quantised model is a target of its own: losslessness is relative to it."""

    AUTO = "auto"
    """Never further from the file than bf16. Where the native pass runs: each matrix in the file's own blocks or others
    that hold it at least as well as bf16, else in bf16. Where PyTorch computes: fp32."""
    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    """8-bit weights (one scale a channel), 16-bit activations; native pass only."""
    INT8_FAST = "int8-fast"
    """8-bit weights and activations; native pass only."""
    INT4 = "int4"
    """Weights in blocks of 32 with a unit each (a GGUF's own, where it has such): 4 bits, or 8 in the output head and
    for what else a mostly 4-bit file holds in more; 16-bit activations; native pass only."""
    INT4_FAST = "int4-fast"
    """The same weights, 8-bit activations with a unit for every 32 but in the output head; native pass only."""
    BLOCKS = "blocks"
    """Each matrix in its GGUF's own blocks, all bits kept, activations of 14 bits. Of types without a kernel and other
    weights: in blocks of 4 bits, if these hold what the file has, or else of 8, to which it is rounded; 16-bit
    activations. Native pass only."""


class CacheType(StrEnum):
    """How keys and values are kept. What is rounded is rounded once, when it is written, and whoever reads it reads the
    same; so guesses change no answer, but the answers are those of a target with such a cache: LOSSY."""

    AUTO = "auto"
    """As attention computes with them: in bf16, or float32 where the model is computed in it."""
    Q8_0 = "q8_0"
    """Blocks of 32 numbers of a head: a byte each, and a unit of 16 bits."""
    FP8 = "fp8"
    """Eight-bit floats (e4m3) without a unit; numbers beyond 448 are cut off. PyTorch only."""


class BackendChoice(StrEnum):
    """Whose code computes a model."""

    AUTO = "auto"
    """Headstart's own where it has a description of the model, else transformers'."""
    HEADSTART = "headstart"
    TRANSFORMERS = "transformers"


class Numerics(StrEnum):
    """What is promised of a pass's arithmetic."""

    AUTO = "auto"
    """Exact where the native pass runs, where it costs nothing; else exact up to ties of floating-point numbers."""
    EXACT = "exact"
    """A row has the same bits in every pass, or nothing is loaded."""


class VerifyRule(StrEnum):
    """How trees of sampled draws are verified; all are exact. Point masses and greedy requests always walk."""

    AUTO = "auto"
    """What accepts most: today BLOCK."""
    REJECTION = "rejection"
    """Algorithm 1 of the paper where draws follow one another singly, the iterative rule where several share a node."""
    BLOCK = "block"
    """Block verification where draws follow one another singly, the iterative rule where several share a node."""
    COUPLED = "coupled"
    """The target's own draw decides, keyed by seed and position: output does not depend on the drafter. A tree of
    independent draws falls back to the same walk, which accepts less than the other rules do."""
