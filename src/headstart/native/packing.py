"""Gives weights and tables to the native library in the form that its interface takes."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import ConfigError
from headstart.models.backend import IntArray
from headstart.models.config import RopeConfig
from headstart.models.rotary import amplitude, inverse_frequencies
from headstart.models.weights import LayerWeights, LinearWeights, NormWeights
from headstart.native.library import Library, Shape

LINEARS = ("qkv", "output", "up", "down")
NORMS = ("attention_norm", "mlp_norm", "q_norm", "k_norm", "attention_post_norm", "mlp_post_norm")
"""Of a layer, by their numbers in the interface."""
OUTPUT_HEAD, FUSE = range(2)
FINAL_NORM, FEATURE_NORM, PART_NORMS = range(3)
"""Of no layer, likewise."""

_FOUR_BIT_BLOCKS = 5.0
"""Bits that a weight takes at most in a file's blocks of 4 bits, units and offsets included."""
EIGHT_BIT_BLOCKS = 8.5
"""Likewise, of 8 bits."""


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


def mostly_in_four_bits(layers: Sequence[LayerWeights]) -> bool:
    """Whether the file that they come from keeps most of their weights in blocks of 4 bits."""
    return _mostly(layers, lambda bits: bits <= _FOUR_BIT_BLOCKS)


def mostly_in_eight_bits(layers: Sequence[LayerWeights]) -> bool:
    """Whether it keeps most of them in blocks of 8 bits (Q8_0), whose every weight is kept here, and all in blocks."""
    all_bits = [getattr(layer, name).stored_bits for layer in layers for name in LINEARS]
    return max(all_bits) <= EIGHT_BIT_BLOCKS and _mostly(layers, lambda bits: bits >= 8)


def _mostly(layers: Sequence[LayerWeights], holds: Callable[[float], bool]) -> bool:
    """Whether something holds of what most weights take in the file."""
    matrices: list[LinearWeights] = [getattr(layer, name) for layer in layers for name in LINEARS]
    sizes = [each.weight.numel() for each in matrices]
    of_those = [size for size, each in zip(sizes, matrices, strict=True) if holds(each.stored_bits)]
    return 2 * sum(of_those) > sum(sizes)


def level_bits(layers: Sequence[LayerWeights], as_stored: bool = False) -> NDArray[np.uint8]:
    """uint8 [layer, matrix] how many bits levels get where weights are in blocks: 4, or 8 for what a file keeps in more
    than 4 of which it keeps most weights in 4 (Q4_K_M, say). Of other files, 4 bits are what was asked for.

    ``as_stored``: 4 for what the file keeps in blocks of 4 bits and 8 for everything else. (In fewer bits, blocks are
    shorter: no grid of sixteen levels holds two of them.)
    """
    stored = np.array([[getattr(layer, name).stored_bits for name in LINEARS] for layer in layers])
    if as_stored:
        return np.where((stored >= 4) & (stored <= _FOUR_BIT_BLOCKS), 4, 8).astype(np.uint8)
    return np.where((stored > _FOUR_BIT_BLOCKS) & mostly_in_four_bits(layers), 8, 4).astype(np.uint8)


def create_model(
    owner: object, library: Library, shape: Shape, name: str, bits: NDArray[np.uint8] | None = None
) -> int:
    """A model of the library without weights yet, destroyed with its owner; ``bits`` as ``level_bits`` gives them,
    None for 4 everywhere.

    Raises:
        ConfigError: memory is short.
    """
    if bits is None:
        bits = np.full((shape.layers, len(LINEARS)), 4, np.uint8)
    handle: int | None = library.create(ctypes.byref(shape), address(bits))
    if not handle:
        raise ConfigError(f"the weights of {name} do not fit in memory")
    weakref.finalize(owner, library.destroy, handle)
    return handle


class Packer:
    """Packs the parts of one model; nothing given is kept."""

    def __init__(self, library: Library, model: int, norm_offset: float = 0.0) -> None:
        self._library = library
        self._model = model
        self._norm_offset = norm_offset

    def layer(self, index: int, parts: LayerWeights) -> None:
        """All norms and matrices of a decoder layer."""
        for which, name in enumerate(NORMS):
            self.norm(index, which, getattr(parts, name))
        for which, name in enumerate(LINEARS):
            self.linear(index, which, getattr(parts, name))

    def linear(self, layer: int, which: int, linear: LinearWeights) -> None:
        """Numbers as in ``headstart_set_linear``."""
        weight = as_matrix(linear.weight)
        bias = None if linear.bias is None else as_float32(linear.bias)
        self._library.set_linear(
            self._model,
            layer,
            which,
            weight.data_ptr(),
            weight.dtype is torch.bfloat16,
            None if bias is None else bias.data_ptr(),
        )

    def norm(self, layer: int, which: int, norm: NormWeights | None) -> None:
        """Numbers as in ``headstart_set_norm``.

        Raises:
            ConfigError: the norm has weights of its own for each head.
        """
        if norm is None:
            return
        weight = as_float32(norm.weight) + self._norm_offset
        if weight.dim() != 1:
            raise ConfigError("the native pass has no norm with weights of its own for each head; use PyTorch")
        bias = None if norm.bias is None else as_float32(norm.bias)
        self._library.set_norm(
            self._model, layer, which, weight.data_ptr(), None if bias is None else bias.data_ptr(), len(weight)
        )


class RopeTables:
    """Cosines and sines that the library borrows, as far as positions have reached."""

    def __init__(
        self, library: Library, model: int, ropes: Sequence[RopeConfig], factors: Tensor | None = None
    ) -> None:
        self._library = library
        self._model = model
        self._ropes = [(inverse_frequencies(rope, factors), amplitude(rope)) for rope in ropes]
        self._tables: list[tuple[Tensor, Tensor]] = []
        self._positions = 0

    def reach(self, positions: int) -> None:
        """Extend the tables to this many positions."""
        if positions <= self._positions:
            return
        # Doubling keeps this rare; very long models do not pay for positions never reached.
        self._positions = max(positions, 2 * self._positions, 4096)
        counted = torch.arange(self._positions).float()[:, None]
        angles = [(counted * frequencies, scale) for frequencies, scale in self._ropes]
        self._tables = [
            ((each.cos() * scale).contiguous(), (each.sin() * scale).contiguous()) for each, scale in angles
        ]
        for index, (cosines, sines) in enumerate(self._tables):
            dimensions = 2 * cosines.shape[1]
            self._library.set_rope(
                self._model, index, cosines.data_ptr(), sines.data_ptr(), self._positions, dimensions
            )
