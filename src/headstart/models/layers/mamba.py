"""Mamba in PyTorch, row by row (Gu and Dao 2023, "Mamba: Linear-time sequence modeling with selective state spaces",
algorithm 2).

Every channel has a state of its own, whose parts decay each at its own rate, by a step that the row chooses. So no
matrix product stands for a piece's rows. Scanned, what needs no state is computed for all of them at once, and one
operation a row is left: an accelerator waits for fewer of them, while a processor would wait for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.layers.convolution import ConvolutionParts, convolve
from headstart.models.layers.layer import Operation
from headstart.models.layers.recurrence import PIECE, LookBack, Pieces, Recur, ScanStep
from headstart.models.state_config import MambaConfig


class MambaParts(ConvolutionParts, Protocol):
    """By the names of ``MambaWeights``."""

    @property
    def selection(self) -> Operation: ...
    @property
    def step(self) -> Operation: ...
    @property
    def step_bias(self) -> Tensor: ...
    @property
    def decay(self) -> Tensor:
        """float32 [inner, state_size], below 0: how fast states decay, for a step of 1."""
        ...

    @property
    def skip(self) -> Tensor: ...
    @property
    def norms(self) -> Sequence[Tensor] | None: ...


def run_mamba(config: MambaConfig, parts: MambaParts, x: Tensor, look_back: LookBack, recur: Recur) -> Tensor:
    """[row, hidden] -> [row, hidden]. States are float32 [row, inner, state_size]."""
    read, gate = parts.input(x).chunk(2, dim=-1)
    written = F.silu(convolve(look_back(read), parts.kernel, parts.kernel_bias))
    sizes = [config.step_rank, config.state_size, config.state_size]
    selected = list(torch.split(parts.selection(written.to(x.dtype)).float(), sizes, dim=-1))
    if parts.norms is not None:
        pairs = zip(selected, parts.norms, strict=True)
        selected = [F.rms_norm(each, each.shape[-1:], weight, config.norm_eps) for each, weight in pairs]
    low_step, where_to, from_where = selected
    step = F.softplus(parts.step(low_step.to(x.dtype)).float() + parts.step_bias)
    scaled = (step * written)[..., None]
    where_to, from_where = where_to[:, None], from_where[..., None]

    def advance(states: Tensor, these: Tensor | slice) -> tuple[Tensor, Tensor]:
        # Decays of all rows at once would take the room of as many states.
        decay = torch.exp(step[these][..., None] * parts.decay)
        after = torch.addcmul(scaled[these] * where_to[these], decay, states)
        return after, torch.matmul(after, from_where[these])[..., 0]

    def scan(pieces: Pieces) -> ScanStep:
        steps, values = pieces.cut_real(step)[..., None], pieces.cut(written)[..., None]
        places, readings = pieces.cut(where_to), pieces.cut(from_where)

        def advance_pieces(states: Tensor, these: slice) -> tuple[Tensor, Tensor]:
            decays = torch.exp(steps[these] * parts.decay)
            after = (steps[these] * values[these]) * places[these]
            for row in range(PIECE):
                states = after[:, row].addcmul_(decays[:, row], states)
            return states, torch.matmul(after, readings[these])[..., 0]

        return advance_pieces

    given = recur(advance, None if x.device.type == "cpu" else scan) + written * parts.skip
    return parts.output((given * F.silu(gate.float())).to(x.dtype))
