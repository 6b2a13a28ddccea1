"""What block heads may have beside their layers: the factor and the confidence of DSpark, the parts of DFlash 2."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.models.layers.layer import Operation


class MarkovHead(nn.Module):
    """What a token adds to the logits of the next one. It begins with nothing."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)

    def begin(self) -> None:
        """For training."""
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        nn.init.zeros_(self.markov_w2.weight)


class ConfidenceHead(nn.Module):
    """How likely a guess is accepted, as a logit."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)

    def forward(self, features: Tensor) -> Tensor:
        """[..., size] -> float32 [...]."""
        logits: Tensor = F.linear(features.float(), self.proj.weight.float(), self.proj.bias.float())
        return logits[..., 0]


def convolved(x: Tensor, changes: Tensor, kernel: Tensor, block_size: int) -> Tensor:
    """A causal convolution within blocks, whose weights depend on the row.

    Args:
        x: [row, hidden] of whole blocks.
        changes: [row, tap, group] what is added to the weights of a group of channels.
        kernel: [tap, hidden].
    """
    groups = changes.shape[-1]
    blocks = x.view(-1, block_size, groups, x.shape[1] // groups)
    weights = kernel.view(1, 1, len(kernel), groups, -1) + changes.view(*blocks.shape[:2], *changes.shape[1:], 1)
    out = weights[:, :, 0] * blocks
    for tap in range(1, len(kernel)):
        out[:, tap:] += weights[:, tap:, tap] * blocks[:, :-tap]
    return out.view_as(x)


def convolved_around(
    x: Tensor, projection: Operation, kernels: Tensor, groups: int, block_size: int
) -> tuple[Tensor, Operation]:
    """What a layer's part reads instead of ``x`` [row, hidden], and what is made of what it gives.

    Args:
        projection: [row, hidden] -> [row, 2 * tap * group] changes of both convolutions.
        kernels: [2, tap, hidden].
    """
    before, after = projection(x).view(len(x), 2, kernels.shape[1], groups).to(x.dtype).unbind(1)
    own = kernels.to(x.dtype)
    finish = partial(convolved, changes=after, kernel=own[1], block_size=block_size)
    return convolved(x, before, own[0], block_size), finish


class BlockConvolution(nn.Module):
    """DFlash 2's convolutions before and after a part of a layer (z-lab, 2026). They begin by changing nothing."""

    def __init__(self, hidden_size: int, taps: int, group_size: int) -> None:
        super().__init__()
        self.groups = hidden_size // group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, hidden_size))
        self.base_kernel.data[:, 0] = 1.0
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * self.groups, bias=False)

    def around(self, x: Tensor, block_size: int) -> tuple[Tensor, Operation]:
        """See ``convolved_around``."""
        return convolved_around(x, self.kernel_projection, self.base_kernel, self.groups, block_size)


class CandidateSelector(nn.Module):
    """DFlash 2's selector of paths: what a token adds to the logits of the next one, by the state that says it. Its
    best ``top`` tokens alone are candidates."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)


def candidates(logits: Tensor, top: int) -> Tensor:
    """Logits [..., column] of the ``top`` best alone; -inf: no candidate."""
    if top >= logits.shape[-1]:
        return logits
    least = logits.topk(top).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf)
