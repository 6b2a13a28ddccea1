"""Gives weights and tables to the native library in the form that its interface takes."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from headstart.backends.native.formats import FOUR, KINDS, PARTS, types_of
from headstart.backends.native.library import Layer, Library, Rows, Shape
from headstart.backends.native.loader import load_library
from headstart.backends.native.matrices import MATRICES, experts_part
from headstart.backends.native.team import team_size
from headstart.errors import ConfigError
from headstart.models.compressed_weights import CompressedWeights
from headstart.models.config import RopeConfig
from headstart.models.gguf_types import CODEBOOK_TYPES, codebook
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.models.state_weights import ConvolutionWeights, DeltaWeights, Mamba2Weights, MambaWeights
from headstart.models.stored import Matrix, MatrixPart, StoredTensor
from headstart.models.weights import (
    AttentionWeights,
    ExpertsWeights,
    HyperWeights,
    LatentWeights,
    LayerWeights,
    MlpAndExpertsWeights,
    MlpWeights,
    TwoMixersWeights,
)
from headstart.passes.batch import IntArray

NORMS = (
    *("attention_norm", "mlp_norm", "q_norm", "k_norm", "attention_post_norm", "mlp_post_norm"),
    *("cross_norm", "attention_sum_norm", "cross_sum_norm", "mlp_sum_norm", "value_norm", "input_norm"),
    *("dense_post_norm", "experts_norm", "experts_post_norm", "router_norm", "side_norm", "stream_norm"),
    *("index_norm", "compressed_norm"),
)
"""Of a layer, by their numbers in the interface."""
CONSTANTS = (
    *("kernel", "kernel_bias", "step_bias", "decay", "skip", "state_norm", "scale", "expert_scales"),
    *("stream_router", "stream_predict", "stream_correct", "stream_scale", "curve"),
    *("attention_kernels", "mlp_kernels", "mixer_mix", "mixer_base", "channel_mix", "channel_base"),
    *("places", "index_places", "expert_table"),
)
"""Small parts of a layer, likewise."""
_PADDING = 64
"""The stream's rows are padded to multiples of it."""
_BAND = 16
"""Channels of Mamba whose states stand together."""
BORROWED, COPIED, THE_HEAD = range(3)
"""How the embedding is kept, likewise."""
OUTPUT_HEAD, FUSE, INPUTS_PROJECTION, STREAM_LINEARS = range(4)
FINAL_NORM, FEATURE_NORM, EMBEDDING_NORM, INPUTS_NORM, PART_NORMS = range(5)
"""Of no layer, likewise."""


def as_int32(values: IntArray) -> IntArray:
    """The same shape as contiguous int32; a copy only where needed."""
    return np.ascontiguousarray(values, dtype=np.int32)


def address(array: NDArray[np.generic]) -> int:
    """Of the first element of a contiguous array. The caller keeps it alive as long as the address is used."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, or empty: four times as slow
        return int(array.__array_interface__["data"][0])


def as_float32(tensor: Tensor) -> Tensor:
    """The same shape as contiguous float32 on the CPU, without gradients."""
    return tensor.detach().to("cpu", torch.float32).contiguous()


def as_matrix(weight: Tensor) -> Tensor:
    """bfloat16 as it is, anything else as float32; contiguous."""
    weight = weight.detach().cpu()
    return (weight if weight.dtype is torch.bfloat16 else weight.float()).contiguous()


def create_model(owner: object, library: Library, shape: Shape, layers: Sequence[Layer], name: str) -> int:
    """A trained head without weights yet, destroyed with its owner; blocks have levels of 4 bits.

    Raises:
        ConfigError: memory is short.
    """
    forms = np.full((len(layers) * MATRICES + 3, PARTS), FOUR, np.uint8)
    handle = new_model(library, shape, layers, name, forms)
    weakref.finalize(owner, library.destroy, handle)
    return handle


def new_model(library: Library, shape: Shape, layers: Sequence[Layer], name: str, forms: NDArray[np.uint8]) -> int:
    """The same for the caller to destroy; ``forms`` as ``formats`` gives them.

    Raises:
        ConfigError: memory is short.
    """
    handle: int | None = library.create(ctypes.byref(shape), (Layer * len(layers))(*layers), address(forms))
    if not handle:
        raise ConfigError(f"the weights of {name} do not fit in memory; choose a smaller model, or fewer bits")
    return handle


def give_codebooks(library: Library, matrix: Tensor | Matrix) -> None:
    """What rows of some types are read with; not before they are wanted: what has them takes a while to import."""
    for kind in types_of(matrix):
        if kind in CODEBOOK_TYPES and kind not in library.codebooks:
            places = codebook(kind)
            library.set_codebook(KINDS[kind], address(places))
            library.codebooks.add(kind)


class RowTable:
    """A matrix as the library reads it, and what has to live meanwhile."""

    def __init__(self, library: Library, matrix: Tensor | Matrix) -> None:
        give_codebooks(library, matrix)
        self._alive: list[object] = []
        parts = [self._tensor(matrix)] if isinstance(matrix, Tensor) else [self._part(each) for each in matrix.parts]
        self.rows = (Rows * len(parts))(*parts)
        self.count = len(parts)

    def _part(self, part: MatrixPart) -> Rows:
        stored = part.stored
        if stored is None or stored.type not in KINDS:
            return self._tensor(part.read())
        data = stored.rows()
        self._alive += [data, part.order]
        order = None if part.order is None else address(part.order)
        row_bytes = len(data) // stored.shape[1 if stored.turned else 0]
        return Rows(data=address(data), order=order, row_bytes=row_bytes, kind=KINDS[stored.type], rows=part.rows)

    def _tensor(self, weight: Tensor) -> Rows:
        weight = as_matrix(weight)
        self._alive.append(weight)
        kind = KINDS["BF16" if weight.dtype is torch.bfloat16 else "F32"]
        row_bytes = weight.shape[1] * weight.itemsize
        return Rows(data=weight.data_ptr(), row_bytes=row_bytes, kind=kind, rows=len(weight))


def read_matrix(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """[out, in] what ``matrix.tensor()`` gives, by the library where there is one: it takes a tenth of the time."""
    library = load_library()
    stored = _stored_parts(matrix)
    if library is None or len(stored) < len(matrix.parts) or not all(each.type in KINDS for each in stored):
        return matrix.tensor().to(dtype)
    tensor = torch.empty(matrix.shape)
    table = RowTable(library, matrix)
    library.read_rows(table.rows, table.count, matrix.shape[1], team_size(), tensor.data_ptr())
    return tensor.to(dtype)


def expect(matrix: Tensor | Matrix) -> None:
    """Have it read from disk; it is packed next."""
    for stored in _stored_parts(matrix):
        stored.expect()


def release(matrix: Tensor | Matrix) -> None:
    """It is packed: what was mapped of its file is given back."""
    for stored in _stored_parts(matrix):
        stored.release()


def _stored_parts(matrix: Tensor | Matrix) -> list[StoredTensor]:
    if isinstance(matrix, Tensor):
        return []
    return [part.stored for part in matrix.parts if part.stored is not None]


def as_one(table: Tensor | Matrix) -> Tensor | Matrix:
    """A table whose rows stand one behind the other, in order."""
    if isinstance(table, Tensor) or (len(table.parts) == 1 and table.parts[0].order is None):
        return table
    return table.tensor()


def norms_of(layer: LayerWeights, after_sums: bool = False, shared: bool = False) -> list[NormWeights | None]:
    """A layer's norms, as ``NORMS`` numbers them. ``after_sums``: those of its parts are not of what these read, but of
    the stream that they were added to. ``shared``: both parts have attention's."""
    mlp_norm = layer.attention_norm if shared else layer.mlp_norm
    of_parts = (layer.attention_norm, mlp_norm, None if layer.cross is None else layer.cross.norm)
    names = (
        ("attention_sum_norm", "mlp_sum_norm", "cross_sum_norm")
        if after_sums
        else ("attention_norm", "mlp_norm", "cross_norm")
    )
    norms = dict(zip(names, of_parts, strict=True))
    for name in ("attention_post_norm", "mlp_post_norm"):
        norms[name] = getattr(layer, name)
    norms["input_norm"] = None if layer.input is None else layer.input.norm
    norms["side_norm"] = None if layer.side is None else layer.side.norm
    norms["stream_norm"] = None if layer.streams is None else layer.streams.router_norm
    channel = layer.channel
    if isinstance(channel, MlpAndExpertsWeights):
        norms["mlp_norm"], norms["dense_post_norm"] = channel.mlp_norm, channel.mlp_post_norm
        norms["experts_norm"], norms["experts_post_norm"] = channel.experts_norm, channel.experts_post_norm
        norms["router_norm"] = channel.experts.router_norm
    mixer = layer.mixer.attention if isinstance(layer.mixer, TwoMixersWeights) else layer.mixer
    if isinstance(mixer, LatentWeights):
        norms["q_norm"], norms["k_norm"], norms["index_norm"] = mixer.q_norm, mixer.kv_norm, mixer.index_norm
    elif isinstance(mixer, CompressedWeights):
        norms["q_norm"], norms["k_norm"] = mixer.q_norm, mixer.kv_norm
        norms |= zip(("compressed_norm", "index_norm"), (each.norm for each in mixer.compressors), strict=False)
    elif isinstance(mixer, AttentionWeights):
        norms["q_norm"], norms["k_norm"] = mixer.q_norm, mixer.k_norm
    return [norms.get(name) for name in NORMS]


def _padded(matrix: Tensor) -> Tensor:
    """Rows as long as those of the stream."""
    return functional.pad(matrix, (0, -matrix.shape[-1] % _PADDING))


def hyper_constants(hyper: HyperWeights) -> tuple[Tensor, Tensor]:
    """What streams tell, and its bases and scales."""
    return _padded(hyper.mix), torch.cat((hyper.base, hyper.scale))


def constants_of(layer: LayerWeights) -> list[Tensor | None]:
    """A layer's constants, as ``CONSTANTS`` numbers them."""
    mixer = layer.mixer.mamba2 if isinstance(layer.mixer, TwoMixersWeights) else layer.mixer
    experts = experts_part(layer)
    constants: dict[str, Tensor | None] = {"scale": layer.scale}
    if experts is not None:
        constants |= {"expert_scales": experts.own_scales, "expert_table": experts.table}
    if isinstance(layer.channel, MlpWeights) and layer.channel.curve is not None:
        above, below, slope, least = layer.channel.curve
        constants["curve"] = torch.stack((functional.softplus(above), slope + functional.softplus(below), slope, least))
    if layer.streams is not None:
        constants["stream_router"] = _padded(layer.streams.router.weight)
        constants["stream_predict"] = layer.streams.predict.weight
        constants["stream_correct"] = layer.streams.correct.weight
        constants["stream_scale"] = layer.streams.scale
    for part, hyper in zip(("mixer", "channel"), layer.hyper or (), strict=False):
        constants[f"{part}_mix"], constants[f"{part}_base"] = hyper_constants(hyper)
    if isinstance(mixer, ConvolutionWeights):
        constants |= {"kernel": mixer.kernel.T, "kernel_bias": mixer.kernel_bias}
    elif isinstance(mixer, LatentWeights):
        constants["index_places"] = mixer.index_places
    elif isinstance(mixer, CompressedWeights):
        constants |= zip(("places", "index_places"), (each.places for each in mixer.compressors), strict=False)
    elif isinstance(mixer, DeltaWeights):
        constants |= {"kernel": mixer.kernel.T, "step_bias": mixer.step_bias, "decay": -mixer.log_decay.exp()}
        constants["state_norm"] = mixer.norm.weight
    elif isinstance(mixer, MambaWeights):
        size = mixer.log_decay.shape[1]
        constants |= {
            "kernel": mixer.kernel.T,
            "kernel_bias": mixer.kernel_bias,
            "step_bias": mixer.step_bias,
            "decay": -mixer.log_decay.exp().view(-1, _BAND, size).transpose(1, 2),
            "skip": mixer.skip,
            "state_norm": None if mixer.norms is None else torch.cat([_filled_up(each.weight) for each in mixer.norms]),
        }
    elif isinstance(mixer, Mamba2Weights):
        constants |= {
            "kernel": _filled_up(mixer.kernel.T),
            "kernel_bias": mixer.kernel_bias,
            "step_bias": mixer.step_bias,
            "decay": -mixer.log_decay.exp(),
            "skip": mixer.skip,
            "state_norm": None if mixer.norm is None else mixer.norm.weight,
        }
    return [constants.get(name) for name in CONSTANTS]


def _filled_up(constant: Tensor) -> Tensor:
    """[..., size], up to a multiple of 16 with zeros."""
    return functional.pad(constant, (0, -constant.shape[-1] % 16))


class Packer:
    """Packs the parts of one model; nothing given is kept."""

    def __init__(self, library: Library, model: int, norm_offset: float = 0.0) -> None:
        self._library = library
        self._model = model
        self._norm_offset = norm_offset

    def norms(self, index: int, parts: LayerWeights, after_sums: bool = False, shared: bool = False) -> None:
        """All norms of a decoder layer, see ``norms_of``."""
        for which, norm in enumerate(norms_of(parts, after_sums, shared)):
            self.norm(index, which, norm)

    def constants(self, index: int, parts: LayerWeights) -> None:
        """All constants of a decoder layer, see ``constants_of``."""
        for which, constant in enumerate(constants_of(parts)):
            if constant is not None:
                self.constant(index, which, constant)

    def constant(self, index: int, which: int, constant: Tensor) -> None:
        """One constant of a layer, by its number among ``CONSTANTS``."""
        values = as_float32(constant)
        self._library.set_constant(self._model, index, which, values.data_ptr(), values.numel())

    def linear(self, layer: int, which: int, linear: LinearWeights) -> None:
        """Numbers as in ``headstart_set_linear``."""
        table = RowTable(self._library, linear.matrix)
        bias = None if linear.bias is None else as_float32(linear.bias)
        self._library.set_linear(
            self._model, layer, which, table.rows, table.count, None if bias is None else bias.data_ptr()
        )
        release(linear.matrix)

    def expert(self, layer: int, expert: int, which: int, linear: LinearWeights) -> None:
        """Numbers as in ``headstart_set_expert``."""
        table = RowTable(self._library, linear.matrix)
        bias = None if linear.bias is None else as_float32(linear.bias)
        bias_at = None if bias is None else bias.data_ptr()
        self._library.set_expert(self._model, layer, expert, which, table.rows, table.count, bias_at)
        release(linear.matrix)

    def router(self, layer: int, experts: ExpertsWeights) -> None:
        """With the gate of the shared expert, if there is one."""
        linears = [experts.router, *(() if experts.shared_gate is None else (experts.shared_gate,))]
        weight = torch.cat([as_float32(linear.weight) for linear in linears])
        bias = None
        if any(linear.bias is not None for linear in linears):
            bias = torch.cat(
                [
                    torch.zeros(len(linear.weight)) if linear.bias is None else as_float32(linear.bias)
                    for linear in linears
                ]
            )
        table = RowTable(self._library, weight)
        correction = None if experts.correction is None else as_float32(experts.correction)
        self._library.set_router(
            self._model,
            layer,
            table.rows,
            table.count,
            None if bias is None else bias.data_ptr(),
            None if correction is None else correction.data_ptr(),
        )

    def sinks(self, layer: int, scores: Tensor) -> None:
        """[head] of attention."""
        scores = as_float32(scores)
        self._library.set_sinks(self._model, layer, scores.data_ptr())

    def embedding(self, table: Tensor | Matrix, positions: Tensor | None, keeps: int) -> None:
        """As ``headstart_set_embedding``; where it is not kept, the caller keeps ``table``, bfloat16 or float32."""
        rows = RowTable(self._library, table)
        learned = None if positions is None else as_float32(positions)
        self._library.set_embedding(
            self._model,
            rows.rows,
            keeps,
            None if learned is None else learned.data_ptr(),
            0 if learned is None else len(learned),
        )
        release(table)

    def norm(self, layer: int, which: int, norm: NormWeights | None) -> None:
        """Numbers as in ``headstart_set_norm``."""
        if norm is None:
            return
        weight = as_float32(norm.weight).flatten() + self._norm_offset
        bias = None if norm.bias is None else as_float32(norm.bias)
        self._library.set_norm(
            self._model, layer, which, weight.data_ptr(), None if bias is None else bias.data_ptr(), len(weight)
        )


class RopeTables:
    """Cosines and sines that the library borrows, as far as positions have reached; of positions that lie ``ahead`` of
    those that it counts."""

    def __init__(
        self, library: Library, model: int, ropes: Sequence[RopeConfig], factors: Tensor | None = None, ahead: int = 0
    ) -> None:
        self._library = library
        self._model = model
        self._ropes = [(inverse_frequencies(rope, factors), amplitude(rope)) for rope in ropes]
        self._tables: list[tuple[Tensor, Tensor]] = []
        self._positions = 0
        self._ahead = ahead

    def reach(self, positions: int) -> None:
        """Extend the tables to this many positions."""
        if positions <= self._positions:
            return
        # Doubling keeps this rare; very long models do not pay for positions never reached.
        self._positions = max(positions, 2 * self._positions, 4096)
        counted = torch.arange(self._ahead, self._ahead + self._positions).float()[:, None]
        angles = [(counted * frequencies, scale) for frequencies, scale in self._ropes]
        self._tables = [
            ((each.cos() * scale).contiguous(), (each.sin() * scale).contiguous()) for each, scale in angles
        ]
        for index, (cosines, sines) in enumerate(self._tables):
            dimensions = 2 * cosines.shape[1]
            self._library.set_rope(
                self._model, index, cosines.data_ptr(), sines.data_ptr(), self._positions, dimensions
            )
