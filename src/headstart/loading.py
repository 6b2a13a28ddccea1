"""From a model's name to something that decodes: checkpoint, configuration, backend, tokenizer, chat template."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

import torch

from headstart.backend import Backend
from headstart.backends.native import backend as native
from headstart.backends.native import precision as native_precision
from headstart.backends.native.formats import all_linears
from headstart.backends.native.kit import NativeKit
from headstart.backends.native.loader import load_library
from headstart.backends.native.packed_model import Rounding
from headstart.backends.torch.backend import TorchBackend
from headstart.errors import ConfigError, meant
from headstart.memory import require_room
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Precision(StrEnum):
    """What a model is computed in. A quantised model is a target of its own: losslessness is relative to it."""

    AUTO = "auto"
    """Never further from the file than bf16. Where the native pass runs without a matrix unit: each matrix in blocks of
    4 or 8 bits if these hold what the file has of it at least as well as bf16, else in bf16. With one: bf16. Where
    PyTorch computes: fp32."""
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
    """Each matrix in blocks of 4 bits, if these hold what the file has of it, or else of 8, to which what has more than
    they hold is rounded; 16-bit activations; native pass only."""

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are read as: bfloat16 where nothing finer is made of them."""
        return torch.bfloat16 if self is Precision.BF16 else torch.float32


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


def create_backend(config: ModelConfig, weights: DecoderWeights, precision: Precision = Precision.AUTO) -> Backend:
    """The native pass where this machine and this model have one, else torch.

    Raises:
        ConfigError: only the native pass knows the precision, and it does not apply.
    """
    reason = native.supports(config)
    library = load_library() if reason is None else None
    if library is not None:
        chosen = "nearest" if library.blocks_pay else "bf16"
        if precision is not Precision.AUTO:
            chosen = precision.value
        backend = native.NativeBackend(config, weights, cast(native_precision.Precision, chosen))
        if precision is not Precision.AUTO:
            _say_what_is_lost(backend.rounding, precision)
        return backend
    exact = Precision.FP32 if precision is Precision.AUTO else precision
    if exact not in _TORCH_DTYPES:
        because = reason or "this machine has no native pass"
        raise ConfigError(f"precision is {exact.value!r}, which needs the native pass ({because}); use bf16 or fp32.")
    dtype = _TORCH_DTYPES[exact]
    require_room(
        _torch_bytes(weights, dtype),
        f"{config.name or config.family} in {exact.value}",
        "choose a smaller model, or precision bf16",
    )
    # What stands beside the passes on the processor is compiled all the same, where it can be.
    library = load_library()
    return TorchBackend(config, weights, dtype, kit=None if library is None else NativeKit(library))


def _torch_bytes(weights: DecoderWeights, dtype: torch.dtype) -> int:
    """Of the weights as PyTorch keeps them, and of the largest matrix while it is read and copied."""
    matrices = [linear.matrix for linear in all_linears(weights)]
    sizes = [math.prod(each.shape) for each in (*matrices, weights.table)]
    positions = 0 if weights.positions is None else weights.positions.numel()
    return (sum(sizes) + positions) * dtype.itemsize + 4 * max(sizes)


_SPOILT = 1e-3
"""How far weights may be from the file's without a word, if that is less than twice what bf16 takes from them."""


def _say_what_is_lost(rounding: Rounding, precision: Precision) -> None:
    """One line where a precision that somebody asked for does not suit the file."""
    if rounding.packed > max(_SPOILT, 2 * rounding.in_bf16):
        logger.warning(
            "precision %s changes this file's weights by %.1f %% on average (bf16: %.2f %%), so that the model may say "
            "other things than the file's would; precision auto stays at least as near to the file as bf16.",
            precision.value,
            100 * rounding.packed,
            100 * rounding.in_bf16,
        )


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
    if parse_numerics(numerics) is Numerics.EXACT and not model.backend.exact_rows:
        because = native.supports(model.config) or "this machine has none"
        raise ConfigError(
            f"numerics is 'exact', which needs the native pass ({because}); 'auto' is exact up to ties of "
            "floating-point numbers here."
        )


def parse_numerics(numerics: Numerics | str) -> Numerics:
    """Numerics by their name.

    Raises:
        ConfigError: there are none of this name.
    """
    try:
        return Numerics(numerics)
    except ValueError:
        raise ConfigError(f"numerics is {numerics!r}; {meant(numerics, Numerics)}") from None


def parse_precision(precision: Precision | str) -> Precision:
    """A precision by its name.

    Raises:
        ConfigError: there is no such precision.
    """
    try:
        return Precision(precision)
    except ValueError:
        raise ConfigError(f"precision is {precision!r}; {meant(precision, Precision)}") from None
