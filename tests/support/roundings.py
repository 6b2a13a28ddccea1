"""What a model makes of roundings: a bound for results that may differ by nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

_PRODUCTS = 4
"""A pass rounds in many products, and the embedding is one place."""


@torch.inference_mode()
def moved_by_roundings(model: PreTrainedModel, logits: Callable[[], Tensor]) -> float:
    """How far logits may move by roundings alone: measured with each number of the embedding rounded otherwise. A delta
    rule and scores that are not scaled make a hundred times more of them than others do."""
    weight = model.get_input_embeddings().weight
    kept, expected, moved = weight.clone(), logits(), 0.0
    try:
        for seed in range(4):
            steps = torch.randint(-1, 2, kept.shape, generator=torch.Generator().manual_seed(seed))
            weight.copy_(kept * (1 + steps * torch.finfo(kept.dtype).eps))
            moved = max(moved, (logits() - expected).abs().max().item())
    finally:
        weight.copy_(kept)
    return _PRODUCTS * moved
