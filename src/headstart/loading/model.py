"""From a model's name to something that decodes: checkpoint, configuration, backend, tokenizer, chat template."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch

from headstart.backends.native import backend as native
from headstart.backends.native import precision as native_precision
from headstart.backends.native.encoder_decoder import NativeEncoderDecoder
from headstart.backends.native.kit import NativeKit
from headstart.backends.native.library import Library
from headstart.backends.native.loader import load_library
from headstart.backends.native.packed_model import Rounding
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.backends.torch.device import parse_device
from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.backends.torch.recorder import GRAPH_BYTES, recorder_of
from headstart.common.enumerations import Numerics, Precision, named
from headstart.common.memory import readable, require_room
from headstart.errors import ConfigError
from headstart.loading.describing import describe
from headstart.loading.reading import USUAL, Reading
from headstart.loading.roles import tokenizer_of
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart.models.encoder_decoder_weights import EncoderDecoderWeights
from headstart.models.generation_config import NO_DEMANDS, OutputDemands, output_demands
from headstart.models.stored_rows import rows_in_file
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.passes.backend import Backend, EncoderBackend
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


_HOST = torch.device("cpu")
_TORCH_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True)
class Model:
    """A loaded model."""

    name: str
    checkpoint: Checkpoint
    config: ModelConfig
    precision: Precision
    """As asked for; the backend's name says what it came to."""
    device: torch.device
    """Where it is computed, and what runs beside it."""
    backend: Backend = field(repr=False)
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    notice: str = ""
    """What a user is to know of how it is computed; nothing where Headstart's own code does."""
    kept: str = ""
    """What a file's quantised types are computed in, a sentence; nothing where that goes without saying."""
    demands: OutputDemands = NO_DEMANDS
    """What its files demand of every output."""
    cuda_graphs: bool = True
    """Whether passes, its own and those of drafters, are recorded where the device can."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What ends a sequence, by the model's configuration or its tokenizer."""
        return tuple(dict.fromkeys((*self.config.eos_token_ids, *self.tokenizer.eos_token_ids)))

    @property
    def elsewhere(self) -> str:
        """Why PyTorch computes it on the processor, a sentence; nothing where the native pass could."""
        reason = supports(self.config)
        is_said = reason is not None and self.device.type == "cpu" and not self.notice
        return f"This model runs in PyTorch, since {reason}." if is_said else ""

    @property
    def recorded(self) -> str:
        """What recordings of its passes may take, a sentence; nothing where none are made."""
        if not (isinstance(self.backend, TorchBackend) and self.backend.records):
            return ""
        return (
            f"Passes are recorded as CUDA graphs, which may take {readable(GRAPH_BYTES)} of the card's memory; "
            "--no-cuda-graphs (cuda_graphs=False) leaves that out."
        )


def weights_dtype(precision: Precision) -> torch.dtype:
    """What weights are read as: bfloat16 where nothing finer is made of them."""
    return torch.bfloat16 if precision is Precision.BF16 else torch.float32


def load_model(
    name: str | Path,
    precision: Precision | str = Precision.AUTO,
    revision: str | None = None,
    device: str | torch.device = "cpu",
    reading: Reading = USUAL,
) -> Model:
    """Load a model by alias, directory, hub id or .gguf file.

    ``device``: "cpu", or an accelerator by PyTorch's name for it, as "cuda", "cuda:1", "mps". ``reading``: whose code
    computes it, and the like.

    Raises:
        CheckpointError: the model is missing, damaged, or of an unknown family.
        ConfigError: the precision or the device is unknown, or cannot be had for this model on this machine.
    """
    named(Precision, "precision", precision), parse_device(str(device))  # refused before anything is opened
    checkpoint = open_checkpoint(name, revision, reading.lora)
    tokenizer = tokenizer_of(checkpoint)
    template = ChatTemplate.from_checkpoint(checkpoint, reading.chat_template)
    return load_opened(checkpoint, tokenizer, template, precision, device, reading)


def load_opened(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate,
    precision: Precision | str = Precision.AUTO,
    device: str | torch.device = "cpu",
    reading: Reading = USUAL,
) -> Model:
    """The same where everything but the weights has been read.

    Raises:
        CheckpointError, ConfigError: as ``load_model``.
    """
    wanted, place = named(Precision, "precision", precision), parse_device(str(device))
    described = describe(checkpoint, reading)
    notice = ""
    backend: Backend
    config = described.config
    if described.foreign is not None:
        backend, manner = described.foreign.load(wanted, place)
        config = backend.config
        notice = (
            f"{checkpoint.name} ({described.config.family}) is run by transformers' own code, {manner}, since "
            f"{described.why}: as correct as Headstart's own, and slower."
        )
    elif config.encoder is None:
        config, weights = load_decoder(checkpoint, weights_dtype(wanted))
        backend = create_backend(config, weights, wanted, place, reading.cuda_graphs)
    else:
        backend = create_encoder_decoder(*load_encoder_decoder(checkpoint, weights_dtype(wanted)), wanted, place)
    return Model(
        name=checkpoint.name,
        checkpoint=checkpoint,
        config=config,
        precision=wanted,
        device=place,
        backend=backend,
        tokenizer=tokenizer,
        chat_template=chat_template,
        notice=notice,
        kept=backend.kept if isinstance(backend, native.NativeBackend) else "",
        demands=output_demands(checkpoint, config),
        cuda_graphs=reading.cuda_graphs,
    )


def create_backend(
    config: ModelConfig,
    weights: DecoderWeights,
    precision: Precision = Precision.AUTO,
    device: torch.device = _HOST,
    cuda_graphs: bool = True,
) -> Backend:
    """On the processor the native pass where this machine and this model have one; else torch.

    ``cuda_graphs``: see ``Reading``.

    Raises:
        ConfigError: only the native pass knows the precision, and it does not apply.
    """
    if device.type != "cpu":
        return _on_accelerator(config, weights, precision, device, cuda_graphs)
    reason = supports(config)
    library = load_library() if reason is None else None
    if library is not None:
        backend = native.NativeBackend(config, weights, _native_precision(library, precision))
        _say_what_is_lost(backend.rounding, precision)
        return backend
    dtype = _host_dtype(precision, reason or "this machine has no native pass")
    _require_room(config, _torch_bytes(weights, dtype), dtype)
    return TorchBackend(config, weights, dtype, kit=_compiled_kit())


def _native_precision(library: Library, precision: Precision) -> native_precision.Precision:
    if precision is Precision.AUTO:
        return "nearest" if library.blocks_pay else "bf16"
    return cast(native_precision.Precision, precision.value)


def create_encoder_decoder(
    config: ModelConfig,
    weights: EncoderDecoderWeights,
    precision: Precision = Precision.AUTO,
    device: torch.device = _HOST,
) -> EncoderBackend:
    """A model with an encoder; as ``create_backend``.

    Raises:
        ConfigError: only the native pass knows the precision, and it does not apply.
    """
    if device.type != "cpu":
        return EncoderDecoderBackend(config, weights, _accelerator_dtype(precision, device), device)
    reason = supports(config)
    library = load_library() if reason is None else None
    if library is not None:
        backend = NativeEncoderDecoder(config, weights, _native_precision(library, precision))
        _say_what_is_lost(backend.rounding, precision)
        return backend
    dtype = _host_dtype(precision, reason or "this machine has no native pass")
    return torch_encoder_decoder(config, weights, dtype)


def torch_encoder_decoder(
    config: ModelConfig, weights: EncoderDecoderWeights, dtype: torch.dtype
) -> EncoderDecoderBackend:
    """On the processor, whatever else could compute it.

    Raises:
        ConfigError: memory is short.
    """
    halves = (weights.encoder, weights.decoder)
    sizes = [math.prod(each.matrix.shape) for half in halves for each in half.linears]
    sizes += [weights.embedding.numel()] * 2
    sizes += [] if weights.encoder.embedding is None else [weights.encoder.embedding.numel()]
    _require_room(config, sum(sizes) * dtype.itemsize + 4 * max(sizes), dtype)
    return EncoderDecoderBackend(config, weights, dtype, kit=_compiled_kit())


def _host_dtype(precision: Precision, because: str) -> torch.dtype:
    """In which PyTorch computes on the processor.

    Raises:
        ConfigError: only the native pass knows the precision, which does not apply for the reason given.
    """
    exact = Precision.FP32 if precision is Precision.AUTO else precision
    if exact not in _TORCH_DTYPES:
        raise ConfigError(f"precision is {exact.value!r}, which needs the native pass ({because}); use bf16 or fp32.")
    return _TORCH_DTYPES[exact]


def _require_room(config: ModelConfig, nbytes: int, dtype: torch.dtype) -> None:
    names = {dtype: precision.value for precision, dtype in _TORCH_DTYPES.items()}
    require_room(
        nbytes, f"{config.name or config.family} in {names[dtype]}", "choose a smaller model, or precision bf16"
    )


def _compiled_kit() -> NativeKit | None:
    """What stands beside the passes on the processor is compiled all the same, where it can be."""
    library = load_library()
    return None if library is None else NativeKit(library)


def _on_accelerator(
    config: ModelConfig, weights: DecoderWeights, precision: Precision, device: torch.device, cuda_graphs: bool
) -> TorchBackend:
    """PyTorch's passes, with PyTorch's kit on the same device.

    Raises:
        ConfigError: only the native pass knows the precision.
    """
    recorder = recorder_of(device) if cuda_graphs else None
    return TorchBackend(config, weights, _accelerator_dtype(precision, device), device, recorder=recorder)


def _accelerator_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    usual = Precision.BF16 if device.type == "cuda" else Precision.FP32
    chosen = usual if precision is Precision.AUTO else precision
    if chosen not in _TORCH_DTYPES:
        raise ConfigError(f"precision is {chosen.value!r}, which only the processor computes; use bf16 or fp32.")
    return _TORCH_DTYPES[chosen]


def _torch_bytes(weights: DecoderWeights, dtype: torch.dtype) -> int:
    """Of the weights as PyTorch keeps them on the processor, and of the largest matrix while it is read and copied."""
    matrices = [linear.matrix for linear in weights.linears]
    tables, inputs = [weights.table], weights.layer_inputs
    if inputs is not None and rows_in_file(inputs.whole) is None:
        tables.append(inputs.whole)
    sizes = [math.prod(each.shape) for each in (*matrices, *tables)]
    positions = 0 if weights.positions is None else weights.positions.numel()
    return (sum(sizes) + positions) * dtype.itemsize + 4 * max(sizes)


_SPOILT = 1e-3
"""How far weights may be from the file's without a word, if that is less than twice what bf16 takes from them."""


def _say_what_is_lost(rounding: Rounding, precision: Precision) -> None:
    """One line where a precision that somebody asked for does not suit the file."""
    if precision is Precision.AUTO:
        return
    if rounding.packed > max(_SPOILT, 2 * rounding.in_bf16):
        logger.warning(
            "precision %s changes this file's weights by %.1f %% on average (bf16: %.2f %%), so that the model may say "
            "other things than the file's would; precision auto stays at least as near to the file as bf16.",
            precision.value,
            100 * rounding.packed,
            100 * rounding.in_bf16,
        )


def require_numerics(model: Model, numerics: Numerics | str) -> None:
    """Refuse a model whose passes do not keep what is asked for.

    Raises:
        ConfigError: numerics is unknown, or "exact" where PyTorch computes.
    """
    if named(Numerics, "numerics", numerics) is Numerics.EXACT and not model.backend.exact_rows:
        because = supports(model.config) or "this machine has none"
        because = "transformers' code computes this model" if model.notice else because
        raise ConfigError(
            f"numerics is 'exact', which needs the native pass ({because}); 'auto' is exact up to ties of "
            "floating-point numbers here."
        )
