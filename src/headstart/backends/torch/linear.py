"""Matrix products of a decoder, in the form the machine runs fastest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.linear_weights import LinearWeights

_MAX_INNER = 1024
"""Packed float32 products over more inputs are summed from parts: one longer chain of additions loses digits, and was
seen to be ordered differently for different row counts."""


class Linear:
    """y = x W^T + b with weights in ``dtype``; float32 accumulation inside.

    On a CPU with oneDNN the matrix is packed once into oneDNN's blocked layout. Measured on two AVX-512 cores over
    all matrices of a 135M model, this is faster than ``F.linear`` from 4 rows on in float32 and always in bfloat16
    (1.2 to 2 times), and in float32 a row's bits there do not depend on how many rows share the product.
    """

    def __init__(self, weights: LinearWeights, dtype: torch.dtype, device: torch.device) -> None:
        weight = weights.weight.to(device, dtype)
        self.nbytes = weight.nbytes
        """Size of the matrix in bytes."""
        self.bias = None if weights.bias is None else weights.bias.to(device, dtype)
        self.packed = device.type == "cpu" and _packs(dtype)
        self.parts = [weight]
        if self.packed:
            count = -(-weight.shape[1] // _MAX_INNER) if dtype == torch.float32 else 1
            self.parts = list(weight.chunk(count, dim=1))
        self.sizes = [part.shape[1] for part in self.parts]
        if self.packed:
            self.parts = [torch.ops.mkldnn._reorder_linear_weight(part.contiguous(), None) for part in self.parts]
        self.changes: list[tuple[Tensor, Linear, Linear]] = []
        """Of adapters in the pass that runs: the rows that have one, and its two matrices, float32."""

    def __call__(self, x: Tensor) -> Tensor:
        """[row, in] -> [row, out]."""
        y = self._product(x)
        for rows, down, up in self.changes:
            changed = y.index_select(0, rows).float() + up(down(x.index_select(0, rows).float()))
            y = y.index_copy(0, rows, changed.to(y.dtype))
        return y

    def _product(self, x: Tensor) -> Tensor:
        if not self.packed:
            return F.linear(x, self.parts[0], self.bias)
        if len(self.parts) == 1:
            return _packed_linear(x, self.parts[0], self.bias)
        inputs = torch.split(x, self.sizes, dim=1)
        y = _packed_linear(inputs[0], self.parts[0], self.bias)
        for part_input, part in zip(inputs[1:], self.parts[1:], strict=True):
            y.add_(_packed_linear(part_input, part, None))
        return y


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs matrices here; of bfloat16 it refuses to where the processor has no AVX-512."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y
