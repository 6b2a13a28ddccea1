"""Folders whose experts are in MXFP4: a nibble for each weight, a power of two for every 32 of them.

Sources: the OCP Microscaling specification, version 1.0, sections 5.3 and 6.3; for how gpt-oss stores the blocks of a
layer's experts [expert, out, block, 16] and their scales [expert, out, block], transformers' integrations/mxfp4.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.files import FileStamp
from headstart.models.stored import StoredTensor
from headstart.models.weights import TensorSource

_BLOCKS, _SCALES = "_blocks", "_scales"
_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_VALUES = torch.cat((_LEVELS, -_LEVELS))
"""By nibble."""
_BIAS = 127
_BITS = 4.25


class Files(TensorSource, Protocol):
    """Tensors of files on disk."""

    @property
    def stamps(self) -> tuple[FileStamp, ...]: ...

    def digest(self) -> str: ...


class Mxfp4Files:
    """The tensors of a folder, with each pair of blocks and scales as the stack of matrices [expert, in, out] that they
    stand for, which is how plain files of such a model have it."""

    def __init__(self, files: Files) -> None:
        self._files = files
        shapes = dict(files.shapes())
        self._packed: set[str] = set()
        for blocks in [name for name in shapes if name.endswith(_BLOCKS)]:
            name = blocks.removesuffix(_BLOCKS)
            self._packed.add(name)
            shapes[name] = _shape_of(blocks, shapes.pop(blocks), shapes.pop(name + _SCALES, None))
        self._shapes = shapes

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, index: int | None = None) -> Tensor:
        """See ``TensorSource``."""
        if name not in self._packed:
            return self._files.read(name, index)
        blocks, scales = (self._files.read(name + ending, index) for ending in (_BLOCKS, _SCALES))
        return dequantised(blocks, scales).transpose(-1, -2)

    def stored(self, name: str) -> StoredTensor:
        """See ``TensorSource``."""
        if name not in self._packed:
            return self._files.stored(name)
        blocks = self._files.stored(name + _BLOCKS)
        return StoredTensor("MXFP4", self._shapes[name], blocks.data, True, blocks.mapping, blocks.offset)

    def stored_bits(self, name: str) -> float:
        """See ``TensorSource``."""
        return _BITS if name in self._packed else self._files.stored_bits(name)

    @property
    def stamps(self) -> tuple[FileStamp, ...]:
        return self._files.stamps

    def digest(self) -> str:
        """Of what is stored."""
        return self._files.digest()


def dequantised(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 [..., block, 16] and [..., block] -> float32 [..., 32 * block]; of a byte the lower nibble comes first."""
    nibbles = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2)
    values = _VALUES[nibbles.to(torch.int64)]
    return torch.ldexp(values, (scales.to(torch.int32) - _BIAS)[..., None]).flatten(-2)


def _shape_of(name: str, blocks: tuple[int, ...], scales: tuple[int, ...] | None) -> tuple[int, ...]:
    if len(blocks) != 4 or blocks[3] != 16 or scales != blocks[:3]:
        found = None if scales is None else list(scales)
        raise CheckpointError(
            f"tensor {name!r} of shape {list(blocks)} and its scales of shape {found} are not the blocks of MXFP4; "
            "fetch the model again."
        )
    experts, outputs, count, _ = blocks
    return experts, 32 * count, outputs
