"""The tensors of a file by the roles that a family's layout has for them: matrices, vectors, norms, converted as it
says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families.base import Convert, TensorLayout
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import FileMatrix, MatrixPart, StoredTensor
from headstart.models.weights import TensorSource

Shape = tuple[int, ...]


class Fetch(Protocol):
    """Name and whole shape of a tensor -> the tensor, or one of those stacked in it."""

    def __call__(self, name: str, shape: Shape, index: int | None = None) -> Tensor: ...


def noting(expected: dict[str, Shape]) -> Fetch:
    """Reads nothing, and notes which tensors are asked for, and their shapes."""

    def note(name: str, shape: Shape, index: int | None = None) -> Tensor:
        expected[name] = shape
        return torch.empty(shape if index is None else shape[1:], device="meta")

    return note


def reading(source: TensorSource) -> Fetch:
    """Reads tensors of a file, which have to hold weights of the shape that is asked for."""

    def read(name: str, shape: Shape, index: int | None = None) -> Tensor:
        require_weights(name, source.stored(name), shape)
        return source.read(name, index)

    return read


@dataclass(frozen=True)
class LayoutTensors:
    """Those of one file. Asked twice: once to learn what is needed, once to read it."""

    config: ModelConfig
    layout: TensorLayout
    prefix: str
    dtype: torch.dtype
    fetch: Fetch
    source: TensorSource | None
    """None: what is needed is to be learnt."""
    orders: dict[tuple[Convert, int], NDArray[np.int32]] = field(default_factory=dict, kw_only=True)
    """Of rows, by conversion and number."""

    def kernel(self, index: int, role: str, channels: int, length: int) -> Tensor:
        """float32 [channels, length] of a convolution of each channel by itself, which some files store as
        [channels, 1, length]."""
        shape = (channels, length) if role in self.layout.flat else (channels, 1, length)
        return self.converted(role, self.fetch(self.name_of(index, role), shape).float()).view(channels, length)

    def bias_of(self, index: int, role: str, size: int) -> Tensor:
        """float32 [size]: the bias of a role."""
        name = self.prefix + self.layout.layer[role].format(i=index)
        return self.converted(role, self.fetch(f"{name}.bias", (size,)).float())

    def linear(self, index: int, parts: Mapping[str, int], inputs: int, has_bias: bool) -> LinearWeights:
        """One matrix from one or several stored ones (role -> outputs), stacked along their outputs."""
        names = {role: self.prefix + self.layout.layer[role].format(i=index) for role in parts}
        whole = {role: self.name_of(index, role) for role in parts}
        matrices = [self.matrix_of(role, whole[role], (outputs, inputs)) for role, outputs in parts.items()]
        bias = None
        if has_bias:
            biases = [
                self.converted(role, self.fetch(f"{names[role]}.bias", (self._rows(role, outputs),)).float())
                if role not in self.layout.without_bias
                else torch.zeros(outputs, device=self.device)
                for role, outputs in parts.items()
            ]
            bias = stacked(biases)
        bits = max(map(self.stored_bits, whole.values()))
        return LinearWeights(FileMatrix(tuple(matrices), inputs, self.dtype), bias, bits)

    def matrix_of(self, role: str, name: str, shape: tuple[int, int]) -> MatrixPart:
        outputs, inputs = shape
        convert = self.layout.convert.get(role)
        if role in self.layout.flat:
            return self._row(name, inputs)
        if role in self.layout.excerpts and convert is not None:
            return self._excerpt(name, shape, self._rows(role, outputs), convert)
        scales = dict(self.config.folded.rows).get(role)
        if scales is not None:
            return self._scaled(name, shape, scales)
        return self.part(name, shape, self.layout.transposed, convert)

    def _scaled(self, name: str, shape: tuple[int, int], scales: tuple[tuple[int, float], ...]) -> MatrixPart:
        """A matrix [out, in] times factors of its rows."""
        counts, factors = zip(*scales, strict=True)

        def read() -> Tensor:
            of_rows = torch.tensor(factors).repeat_interleave(torch.tensor(counts))
            return (self.fetch(name, shape).float() * of_rows[:, None]).to(self.dtype)

        if self.source is None:
            self.fetch(name, shape)
        return MatrixPart(name, shape[0], read)

    def _rows(self, role: str, outputs: int) -> int:
        """Rows of the tensor that a role's are in."""
        return outputs * self.layout.excerpts.get(role, 1)

    def _excerpt(self, name: str, shape: tuple[int, int], rows: int, convert: Convert) -> MatrixPart:
        """Some rows of a tensor [rows, in]."""
        outputs, inputs = shape

        def read() -> Tensor:
            return convert(self.fetch(name, (rows, inputs)).to(self.dtype), self.config)

        if self.source is None:
            read()
            return MatrixPart(name, outputs, read)
        stored = self.source.stored(name)
        require_weights(name, stored, (rows, inputs))
        if stored.turned:
            return MatrixPart(name, outputs, read)
        return MatrixPart(name, outputs, read, stored, self._order_of_rows(convert, rows))

    def part(
        self,
        name: str,
        shape: Shape,
        transposed: bool = False,
        convert: Convert | None = None,
        index: int | None = None,
        count: int | None = None,
    ) -> MatrixPart:
        """A stored matrix of canonical shape [out, in], which the file may hold as [in, out]; or the one numbered
        ``index`` of ``count`` that are stacked in one tensor."""
        outputs, inputs = shape
        as_stored = (inputs, outputs) if transposed else shape
        whole = as_stored if count is None else (count, *as_stored)
        below = count is not None and self.layout.stacks == "below"
        in_file = (whole[0] * whole[1], whole[2]) if below else whole

        def read() -> Tensor:
            tensor = self.fetch(name, in_file, None if below else index)
            tensor = (tensor.view(whole)[index] if below else tensor).to(self.dtype)
            weight = tensor.T if transposed else tensor
            return weight if convert is None else convert(weight, self.config)

        if self.source is None:
            self.fetch(name, in_file, None if below else index)
            return MatrixPart(name, outputs, read)
        stored = self.source.stored(name)
        require_weights(name, stored, in_file)
        if index is not None:
            stored = replace(stored, shape=whole).part(index)
        order = None if convert is None else self._order_of_rows(convert, outputs)
        return MatrixPart(name, outputs, read, stored if stored.turned == transposed else None, order)

    def _row(self, name: str, inputs: int) -> MatrixPart:
        """A matrix of one row, stored as a vector."""

        def read() -> Tensor:
            return self.fetch(name, (inputs,)).to(self.dtype)[None]

        if self.source is None:
            read()
        return MatrixPart(name, 1, read)

    def _order_of_rows(self, convert: Convert, rows: int) -> NDArray[np.int32]:
        """[rows] where a conversion takes each row from: conversions of matrices move rows, and do nothing else."""
        if (convert, rows) not in self.orders:
            counted = torch.arange(2 * rows, dtype=torch.float64).reshape(rows, 2)
            moved = convert(counted, self.config)
            order = (moved[:, 0] / 2).to(torch.int64)
            if not torch.equal(counted[order], moved):
                raise TypeError(f"matrices of family {self.config.family} are converted in more than their rows")
            self.orders[convert, rows] = order.numpy().astype(np.int32)
        return self.orders[convert, rows]

    def stored_bits(self, name: str) -> float:
        """Bits that a weight of a tensor takes in its file; 0: what is needed is to be learnt."""
        return 0.0 if self.source is None else self.source.stored_bits(name)

    def norm(self, name: str, role: str, size: int) -> NormWeights:
        """The norm of a name and role, with or without weights as the model has them."""
        has_bias = self.config.norms.kind == "layer" and self.config.norms.bias
        if not self.config.norms.learnt:
            return self.blank_norm((size,), has_bias)
        name = self.prefix + name
        weight = self.converted(role, self.fetch(f"{name}.weight", (size,)).float())
        bias = self.fetch(f"{name}.bias", (size,)).float() if has_bias else None
        return NormWeights(weight, bias)

    def blank_norm(self, shape: Shape, has_bias: bool) -> NormWeights:
        """Of a norm without weights."""
        weight = torch.ones(shape, device=self.device) - self.config.norms.offset
        return NormWeights(weight, torch.zeros(shape, device=self.device) if has_bias else None)

    def vector(self, index: int, role: str, size: int, count: int | None = None) -> Tensor:
        """float32 [size], or [count, size], of a role that is no matrix."""
        name = self.name_of(index, role)
        shape: Shape = () if role in self.layout.scalars else (size,) if count is None else (count, size)
        shape = (1, size) if role in self.layout.as_rows else shape
        if role in self.layout.folded:
            shape = self.layout.folded[role](self.config)
        return self.converted(role, self.fetch(name, shape).float()).view(-1 if count is None else shape)

    def numbers(self, index: int, role: str, shape: Shape, count: int) -> Tensor:
        """int64 [*shape] whole numbers below ``count`` of a role.

        Raises:
            CheckpointError: the file has something else.
        """
        name = self.name_of(index, role)
        if self.source is None:
            return self.fetch(name, shape)
        stored = self.source.stored(name)
        found = self.source.read(name).long() if stored.type in ("I64", "I32") else torch.full((1,), -1)
        if stored.shape != shape or found.amin() < 0 or found.amax() >= count:
            wanted = f"whole numbers from 0 to {count - 1} of shape {list(shape)}"
            raise CheckpointError(f"tensor {name!r} does not hold {wanted}; fetch the model again.")
        return found

    def name_of(self, index: int, role: str, expert: int = 0) -> str:
        """The tensor of a role in a layer."""
        name = self.prefix + self.layout.layer[role].format(i=index, e=expert)
        return name if role in self.layout.whole else f"{name}.weight"

    def converted(self, role: str, tensor: Tensor) -> Tensor:
        """A tensor of a role as the decoders want it."""
        convert = self.layout.convert.get(role)
        return convert(tensor, self.config) if convert is not None else tensor

    @property
    def device(self) -> str:
        """Where what is made beside the file's tensors stands."""
        return "meta" if self.source is None else "cpu"


def require_weights(name: str, stored: StoredTensor, shape: Shape) -> None:
    """Refuse a stored tensor that is not of ``shape``, or holds no floating-point numbers.

    Raises:
        CheckpointError: so it is.
    """
    if stored.shape != shape or not stored.holds_weights:
        raise CheckpointError(
            f"tensor {name!r} holds {stored.type} of shape {list(stored.shape)} instead of floating-point "
            f"numbers of shape {list(shape)}; use an unquantised or a GGUF model."
        )


def stacked(tensors: list[Tensor]) -> Tensor:
    first, *others = tensors
    if first.is_meta:
        # Concatenating shapes alone would import all of torch's compiler, which takes seconds.
        return first.new_empty(sum(map(len, tensors)), *first.shape[1:])
    return torch.cat(tensors) if others else first.contiguous()
