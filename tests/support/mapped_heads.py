"""Random heads whose output rows are a linear map of their target's, as trained ones nearly are: those that may say
tokens of the text beyond their vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.drafting.methods.eagle.head import EagleHead

_RANK = 4
"""Of the target's output rows, so that a few of them tell the map of all."""


def output_rows(vocab_size: int, hidden_size: int, generator: torch.Generator) -> Tensor:
    """float32 [vocab, hidden] of a target, bfloat16 numbers."""
    rows = torch.randn(vocab_size, _RANK, generator=generator) @ torch.randn(_RANK, hidden_size, generator=generator)
    return (rows * _RANK**-0.5).bfloat16().float()


def map_rows(head: EagleHead, target_rows: Tensor, scale: float = 1.0) -> None:
    """Give a head with a reduced vocabulary output rows that a random map makes from the target's."""
    generator = torch.Generator().manual_seed(6)
    shape = (target_rows.shape[1], head.config.hidden_size)
    rows = target_rows[head.target_ids] @ torch.randn(shape, generator=generator)
    rows *= scale / rows.std()
    with torch.no_grad():
        if not head.config.norm_output:
            rows /= head.norm.weight
        head.lm_head.weight.copy_(rows.bfloat16())
