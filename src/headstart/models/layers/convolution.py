"""Short convolutions in PyTorch, of each channel by itself: a row and a few before it, weighed.

LFM2's mixer is one between two gates; recurrent mixers read their inputs through one.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from headstart.models.layers.layer import Operation
from headstart.models.layers.recurrence import LookBack


class ConvolutionParts(Protocol):
    """By the names of ``ConvolutionWeights``."""

    @property
    def input(self) -> Operation: ...
    @property
    def kernel(self) -> Tensor:
        """float32 [length, channel]"""
        ...

    @property
    def kernel_bias(self) -> Tensor | None: ...
    @property
    def output(self) -> Operation: ...


def convolve(seen: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """What a convolution makes of what rows see [row, length, channel]: [row, channel], float32.

    Added up in the order of the rows, whatever else is in the pass.

    Args:
        kernel: float32 [length, channel].
        bias: float32 [channel].
    """
    mixed = seen[:, 0] * kernel[0]
    for place in range(1, len(kernel)):
        mixed = mixed + seen[:, place] * kernel[place]
    return mixed if bias is None else mixed + bias


def run_convolution(parts: ConvolutionParts, x: Tensor, look_back: LookBack) -> Tensor:
    """[row, hidden] -> [row, hidden]: a convolution between two gates (LFM2: Amini et al. 2025, section 2.1)."""
    gate_in, gate_out, values = parts.input(x).chunk(3, dim=-1)
    mixed = convolve(look_back(gate_in * values), parts.kernel, parts.kernel_bias)
    return parts.output(gate_out * mixed.to(x.dtype))
