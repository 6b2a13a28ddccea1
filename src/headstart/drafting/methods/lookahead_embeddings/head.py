"""PaSS (Monea, Joulin and Grave 2023, arXiv:2311.13581): look-ahead tokens, of which only the embeddings are learnt.

After the token at position m they stand at positions m + 1, m + 2, ...; the k-th sees the text up to m and those
before it, and the target, as it is, says there what it expects at position m + k + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headstart.drafting.heads.files import load_strictly
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import Fields

KIND = "pass"
MAX_SLOTS = 64


class LookaheadEmbeddings(nn.Module):
    """``embeddings`` float32 [slot, hidden]: what the target's first layer reads in place of a token's embedding."""

    def __init__(self, slots: int, hidden_size: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.zeros(slots, hidden_size))

    @property
    def slots(self) -> int:
        return len(self.embeddings)

    @torch.no_grad()
    def begin_like(self, table: Tensor, scale: float) -> None:
        """Start as unremarkable tokens: normal, with mean and deviation of the target's embeddings [vocab, hidden]."""
        deviation, mean = torch.std_mean(table.float(), dim=0)
        drawn = torch.randn(self.embeddings.shape).to(table.device)
        self.embeddings.copy_((mean + deviation * drawn) * scale)


def describe_lookahead(head: LookaheadEmbeddings) -> dict[str, Any]:
    """Entries of ``config.json`` beside the kind."""
    return {"slots": head.slots, "hidden_size": head.embeddings.shape[1]}


def read_lookahead(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, source: str
) -> LookaheadEmbeddings:
    """Look-ahead embeddings in Headstart's format.

    Raises:
        CheckpointError: as ``eagle_format.read_eagle``.
    """
    fields = Fields(description, source)
    head = LookaheadEmbeddings(fields.integer("slots", maximum=MAX_SLOTS), fields.integer("hidden_size"))
    if head.embeddings.shape[1] != target.hidden_size:
        raise CheckpointError(
            f"{source} has embeddings of {head.embeddings.shape[1]} numbers, but the target's have "
            f"{target.hidden_size}; name embeddings that were trained for this target."
        )
    load_strictly(head, tensors, source)
    return head
