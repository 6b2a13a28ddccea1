"""PaSS (Monea, Joulin and Grave 2023, arXiv:2311.13581): look-ahead tokens, of which only the embeddings are learnt.

After the token at position m they stand at positions m + 1, m + 2, ...; the k-th sees the text up to m and those
before it, and the target, as it is, says there what it expects at position m + k + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.drafting.heads.formats import TrainedHead

KIND = "pass"
MAX_SLOTS = 64


class LookaheadEmbeddings(TrainedHead):
    """``embeddings`` float32 [slot, hidden]: what the target's first layer reads in place of a token's embedding."""

    def __init__(self, slots: int, hidden_size: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.zeros(slots, hidden_size))

    @property
    def kind(self) -> str:
        return KIND

    @property
    def slots(self) -> int:
        return len(self.embeddings)

    @torch.no_grad()
    def begin_like(self, table: Tensor, scale: float) -> None:
        """Start as unremarkable tokens: normal, with mean and deviation of the target's embeddings [vocab, hidden]."""
        deviation, mean = torch.std_mean(table.float(), dim=0)
        drawn = torch.randn(self.embeddings.shape).to(table.device)
        self.embeddings.copy_((mean + deviation * drawn) * scale)
