"""The mean of a head's weights over its latest steps, which foresees better than the weights of any one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headstart_train.objectives.objective import trainable


class RunningMean:
    """Small batches leave the weights jumping about what they near; their mean lies closer to it (Polyak and Juditsky
    1992; Izmailov et al. 2018, arXiv:1803.05407). Steps are forgotten exponentially, over a span that grows with the
    training (Karras et al. 2024, arXiv:2312.02696, section 3.1), so that nothing depends on its planned length.

    Args:
        head: whose trainable parameters are averaged.
        share: of the steps done, the span. 1: the mean of all; 0: the weights as they are.
    """

    def __init__(self, head: nn.Module, share: float) -> None:
        self._parameters = dict(trainable(head)) if share else {}
        self._share = share
        self._mean = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def count(self, step: int) -> None:
        """The weights of a step, counted from 1."""
        weight = 1 / max(self._share * step, 1)
        for name, parameter in self._parameters.items():
            self._mean[name].lerp_(parameter, weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The head has the mean's weights meanwhile."""
        own = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.data = self._mean[name]
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = own[name]

    def state(self) -> dict[str, Tensor]:
        """By parameter."""
        return self._mean

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state()`` of a mean of the same head and share."""
        for name, mean in self._mean.items():
            mean.copy_(state[name])
