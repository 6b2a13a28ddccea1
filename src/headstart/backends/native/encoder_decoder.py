"""Encoder-decoder models on the native library: its pass is the decoder, PyTorch runs the encoder with its products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import single_form
from headstart.backends.native.library import Library
from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.matrices import linears_of
from headstart.backends.native.packing import address, as_int32
from headstart.backends.native.precision import Precision
from headstart.backends.torch.encoder import Encoder, position_table
from headstart.common.memory import require_room
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder_weights import EncoderDecoderWeights
from headstart.models.files import WeightsIdentity
from headstart.models.layers.positions import distance_buckets
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import Matrix
from headstart.models.weights import (
    FusionWeights,
    HyperWeights,
    LayerInputsWeights,
    LayerWeights,
    StreamEndsWeights,
)
from headstart.passes.batch import EncoderInput, KVStorage

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class _DecoderHalf:
    """What the library packs of a model with an encoder (``formats.DecoderParts``)."""

    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights | None
    embedding_norm: NormWeights | None
    positions: Tensor | None
    table: Tensor | Matrix
    head: LinearWeights
    identity: WeightsIdentity | None
    rope_factors: Tensor | None = None
    layer_inputs: LayerInputsWeights | None = None
    streams: StreamEndsWeights | None = None
    hyper_end: HyperWeights | None = None
    fusion: FusionWeights | None = None

    @property
    def linears(self) -> Iterator[LinearWeights]:
        for layer in self.layers:
            yield from (linear for linear in linears_of(layer) if linear is not None)
        yield self.head


class NativeEncoderDecoder(NativeBackend):
    """A model with an encoder (``passes.backend.EncoderBackend``), its decoder packed for this machine's processor.

    Rows are computed to the same bits in every pass, as ``NativeBackend``'s are. They read encoder memories, whose bits
    are PyTorch's: the same for an equal input as long as PyTorch runs with as many threads.

    Args, errors: as ``NativeBackend``.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: EncoderDecoderWeights,
        precision: Precision = "bf16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        super().__init__(config, _decoder_half(config, weights), precision, threads, isa)
        library = self._library
        for layer, table in enumerate(_distance_tables(config, weights)):
            library.set_distance_bias(self.handle, layer, table.data_ptr(), table.shape[1])
        table = weights.embedding if weights.encoder.embedding is None else weights.encoder.embedding
        rounded = table.to(torch.float32 if precision == "fp32" else torch.bfloat16)
        _require_room(config, weights, rounded)
        linear = partial(_packed, library, precision, self.threads)
        with torch.inference_mode():
            self.encoder = Encoder(config, weights.encoder, rounded, torch.float32, _HOST, linear)
            self._memory_parts = [linear(cross.kv) for cross in weights.decoder.cross]
        self._encoder_bytes = rounded.nbytes + self.encoder.nbytes + sum(each.nbytes for each in self._memory_parts)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._encoder_bytes

    @torch.inference_mode()
    def encode(self, source: EncoderInput, storage: KVStorage, blocks: Sequence[int]) -> None:
        """See ``EncoderBackend``."""
        own = self._own(storage)
        states = self.encoder.read(source)
        table = as_int32(np.asarray(blocks))
        for layer, part in enumerate(self._memory_parts):
            rows = part(states)
            self._library.write_memory(
                self.handle, own.handle, layer, address(table), own.pages_per_block, len(rows), rows.data_ptr()
            )


def _decoder_half(config: ModelConfig, weights: EncoderDecoderWeights) -> _DecoderHalf:
    decoder = weights.decoder
    return _DecoderHalf(
        decoder.layers,
        decoder.final_norm,
        decoder.embedding_norm,
        position_table(config, decoder, config.max_positions),
        weights.embedding,
        weights.head,
        weights.identity,
    )


def _distance_tables(config: ModelConfig, weights: EncoderDecoderWeights) -> Iterator[Tensor]:
    """Of each layer float32 [head, distance], all further distances as the last; none where places are told by other
    means."""
    tables = weights.decoder.relative
    assert config.encoder is not None
    if config.encoder.relative is None:
        return
    distances = torch.arange(config.encoder.relative.max_distance + 1)
    buckets = distance_buckets(distances, config.encoder.relative, both_sides=False)
    for layer in range(config.num_layers):
        yield tables[min(layer, len(tables) - 1)].float()[buckets].T.contiguous()


def _packed(library: Library, precision: Precision, threads: int, weights: LinearWeights) -> NativeLinear:
    form, bits = single_form(weights, precision, library.multiplies_bytes)
    return NativeLinear(library, weights, form, threads, bits)


def _require_room(config: ModelConfig, weights: EncoderDecoderWeights, embedding: Tensor) -> None:
    """Room for what stands beside the decoder, which is packed.

    Raises:
        ConfigError: there is none.
    """
    matrices = [*weights.encoder.linears, *(cross.kv for cross in weights.decoder.cross)]
    size = sum(each.matrix.shape[0] * each.matrix.shape[1] for each in matrices) + embedding.numel()
    require_room(
        size * embedding.itemsize,
        f"the encoder of {config.name or config.family}",
        "choose a smaller model, or fewer bits (precision bf16)",
    )
