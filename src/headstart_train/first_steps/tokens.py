"""Tokens that heads can say, and those that text never holds."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.drafting.heads.formats import SpeakingHead
from headstart.models.config import ModelConfig

FIRST_SURENESS = 0.1
"""Of a fresh head: what knows nothing yet must not be sure of it (docs/experiments/training.md, 0005)."""


def mask_token(config: ModelConfig, ids: Tensor) -> int:
    """What masks look like: a token that the text never holds, or hardly ever."""
    rare = torch.ones(config.vocab_size, dtype=torch.bool)
    rare[ids.cpu()] = False
    return int(rare.nonzero().max()) if rare.any() else config.vocab_size - 1


def name_tokens(head: SpeakingHead, ids: Tensor) -> None:
    """Let a head of a reduced vocabulary know which tokens it can say."""
    if head.config.reduced:
        head.d2t.copy_(ids.cpu() - torch.arange(len(ids)))
