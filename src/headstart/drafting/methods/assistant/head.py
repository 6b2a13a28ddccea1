"""An assistant: a small decoder whose layers keep nothing, and read keys and values of the target's last layers.

It reads a token and the target's state before it, side by side, and says the next token; from what it made of that it
goes on by itself. All its guesses stand on the position of the last committed token, as it was trained (transformers'
models/gemma4_assistant, generation/candidate_generator.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.heads.formats import TrainedHead
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights

KIND = "assistant"


@dataclass(frozen=True)
class Clusters:
    """An output head of which a state reads a few clusters of tokens alone."""

    centroids: Tensor
    """[cluster, hidden]"""
    tokens: Tensor
    """int64 [cluster, token], each of the vocabulary once."""
    read: int
    """Clusters that a state reads: those of the highest score."""
    head: Tensor
    """[vocab, hidden]"""

    def logits(self, states: Tensor) -> Tensor:
        """[row, hidden] -> float32 [row, vocab], -inf where nothing was read."""
        chosen = F.linear(states, self.centroids).topk(self.read).indices
        tokens = self.tokens[chosen].flatten(1)
        said = torch.bmm(self.head[tokens], states[:, :, None])[:, :, 0].float()
        logits = said.new_full((len(states), len(self.head)), -torch.inf)
        return logits.scatter_(1, tokens, said)

    def to(self, device: torch.device) -> Clusters:
        """The same on a device."""
        return Clusters(self.centroids.to(device), self.tokens.to(device), self.read, self.head.to(device))

    @property
    def nbytes(self) -> int:
        return self.centroids.nbytes + self.tokens.nbytes + self.head.nbytes


class AssistantHead(TrainedHead):
    """An assistant, made for a target of one size.

    Args:
        config: of its layers, each of which ``reads`` a layer of the target.
        weights: where it has ``clusters``, with a few rows of its tables in place of them all.
        before: [hidden, 2 * target hidden] the token's embedding and the state side by side -> the first layer's input.
        after: [target hidden, hidden] its last state -> the one to go on from.
    """

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, before: Tensor, after: Tensor, clusters: Clusters | None
    ) -> None:
        super().__init__()
        self.config, self.weights = config, weights
        self.before, self.after, self.clusters = before, after, clusters

    @property
    def kind(self) -> str:
        return KIND
