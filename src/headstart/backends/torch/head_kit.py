"""What trained heads are computed with beside passes: packed matrices, and the likeliest tokens of logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.linear import Linear
from headstart.backends.torch.recorder import Recorder
from headstart.models.linear_weights import LinearWeights
from headstart.passes.batch import IntArray


class LinearLayer(Protocol):
    """A packed matrix."""

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """[row, in] -> [row, out]."""
        ...


@dataclass(frozen=True)
class Kit:
    """What heads are computed with, on one device and in one precision."""

    dtype: torch.dtype
    """Of the rows between the products."""
    linear: Callable[[LinearWeights], LinearLayer]
    device: torch.device
    """Of the rows."""
    best: Callable[[Tensor, int], tuple[NDArray[np.float32], IntArray]]
    """See ``best_tokens``."""
    recorder: Recorder | None = None
    """Of the device, records what heads do; None: nothing is recorded."""


def torch_kit(dtype: torch.dtype, device: torch.device | str = "cpu", recorder: Recorder | None = None) -> Kit:
    """Everything by PyTorch."""
    place = torch.device(device)
    return Kit(dtype, lambda weights: Linear(weights, dtype, place), place, best_tokens, recorder)


@torch.inference_mode()
def best_tokens(logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
    """The likeliest tokens of float32 logits [row, draft vocab], the likeliest first.

    Returns:
        Log-probabilities and draft ids, [row, rank] each.
    """
    best = logits.topk(ranks)
    log_probs = best.values - logits.logsumexp(-1, keepdim=True)
    return log_probs.cpu().numpy(), best.indices.to("cpu", torch.int32).numpy()
