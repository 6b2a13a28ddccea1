"""From a model's name to something that decodes: checkpoint, configuration, backend, tokenizer, chat template."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

import torch

from headstart.errors import ConfigError
from headstart.memory import require_room
from headstart.models.backend import Backend
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.torch_backend import TorchBackend
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.native import backend as native
from headstart.native.library import Library
from headstart.native.loader import load_library
from headstart.native.packing import EIGHT_BIT_BLOCKS, mostly_in_eight_bits, mostly_in_four_bits
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer


class Precision(StrEnum):
    """What a model is computed in. A quantised model is a target of its own: losslessness is relative to it."""

    AUTO = "auto"
    """Where the native pass runs: int4 for a file of 4-bit blocks and blocks for one of 8-bit ones, whose weights they
    keep, if there is no matrix unit (and for blocks a dot product of bytes); otherwise bf16. Else fp32."""
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
    """Each matrix in blocks of 4 bits or 8, as a GGUF keeps it: Q4_0, Q4_1, Q5_0 and Q8_0 to the bit, others rounded to
    8 bits; 16-bit activations; native pass only."""

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are read as: bfloat16 where nothing finer is made of them."""
        return torch.bfloat16 if self is Precision.BF16 else torch.float32


_BYTES = {precision: 2.0 for precision in Precision} | {
    Precision.FP32: 4.0,
    Precision.INT8: 1.0,
    Precision.INT8_FAST: 1.0,
    Precision.INT4: 0.625,
    Precision.INT4_FAST: 0.625,
    Precision.BLOCKS: 0.625,
}
"""Of a weight; least, where some are kept in more."""
_TORCH_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True)
class Model:
    """A loaded model."""

    name: str
    checkpoint: Checkpoint
    config: ModelConfig
    precision: Precision
    """As asked for; the backend's name says what it came to."""
    backend: Backend = field(repr=False)
    tokenizer: Tokenizer
    chat_template: ChatTemplate

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What ends a sequence, by the model's configuration or its tokenizer."""
        return tuple(dict.fromkeys((*self.config.eos_token_ids, *self.tokenizer.eos_token_ids)))


def load_model(name: str | Path, precision: Precision | str = Precision.AUTO, revision: str | None = None) -> Model:
    """Load a model by alias, directory, hub id or .gguf file.

    Raises:
        CheckpointError: the model is missing, damaged, or of an unknown family.
        ConfigError: the precision is unknown, or cannot be had for this model on this machine.
    """
    wanted = parse_precision(precision)
    checkpoint = open_checkpoint(name, revision)
    require_room(
        _weight_bytes(checkpoint, wanted), f"{name} in {wanted.value}", "choose a smaller model, or precision int4"
    )
    config, weights = load_decoder(checkpoint, wanted.dtype)
    return Model(
        name=str(name),
        checkpoint=checkpoint,
        config=config,
        precision=wanted,
        backend=create_backend(config, weights, wanted),
        tokenizer=Tokenizer.from_checkpoint(checkpoint),
        chat_template=ChatTemplate.from_checkpoint(checkpoint),
    )


def _weight_bytes(checkpoint: Checkpoint, precision: Precision) -> int:
    """Of the weights as they will be kept. Less than loading needs for a while: what is refused never fits."""
    return int(_BYTES[precision] * sum(math.prod(shape) for shape in checkpoint.shapes().values()))


def create_backend(config: ModelConfig, weights: DecoderWeights, precision: Precision = Precision.AUTO) -> Backend:
    """The native pass where this machine and this model have one, else torch.

    Raises:
        ConfigError: only the native pass knows the precision, and it does not apply.
    """
    reason = native.supports(config)
    library = load_library() if reason is None else None
    if library is not None:
        chosen = _native_default(weights, library) if precision is Precision.AUTO else precision
        return native.NativeBackend(config, weights, cast(native.Precision, chosen.value))
    chosen = Precision.FP32 if precision is Precision.AUTO else precision
    if chosen not in _TORCH_DTYPES:
        because = reason or "this machine has no native pass"
        raise ConfigError(f"precision is {chosen.value!r}, which needs the native pass ({because}); use bf16 or fp32.")
    return TorchBackend(config, weights, _TORCH_DTYPES[chosen])


class Numerics(StrEnum):
    """What is promised of a pass's arithmetic."""

    AUTO = "auto"
    """Exact where the native pass runs, where it costs nothing; else exact up to ties of floating-point numbers."""
    EXACT = "exact"
    """A row has the same bits in every pass, or nothing is loaded."""


def require_numerics(model: Model, numerics: Numerics | str) -> None:
    """Refuse a model whose passes do not keep what is asked for.

    Raises:
        ConfigError: numerics is unknown, or "exact" where PyTorch computes.
    """
    if numerics not in tuple(Numerics):
        raise ConfigError(f"numerics is {numerics!r}; choose one of {', '.join(Numerics)}.")
    if numerics == Numerics.EXACT and not model.backend.exact_rows:
        because = native.supports(model.config) or "this machine has none"
        raise ConfigError(
            f"numerics is 'exact', which needs the native pass ({because}); 'auto' is exact up to ties of "
            "floating-point numbers here."
        )


def _native_default(weights: DecoderWeights, library: Library) -> Precision:
    """A model that was published in blocks is nearer to itself in them than in bf16, and a row takes half to four
    fifths of the time; the matrix unit has no part in it, plain operations take longer, and rows of 8-bit blocks are
    dear without a dot product of bytes (docs/decisions/0033, 0058)."""
    if not library.blocks_pay or weights.head.stored_bits > EIGHT_BIT_BLOCKS:
        return Precision.BF16
    if mostly_in_four_bits(weights.layers):
        return Precision.INT4
    keeps_eight = library.multiplies_bytes and mostly_in_eight_bits(weights.layers)
    return Precision.BLOCKS if keeps_eight else Precision.BF16


def parse_precision(precision: Precision | str) -> Precision:
    """A precision by its name.

    Raises:
        ConfigError: there is no such precision.
    """
    try:
        return Precision(precision)
    except ValueError:
        raise ConfigError(f"precision is {precision!r}; choose one of {', '.join(Precision)}.") from None
