"""Faster ways to the same draws: what compiled code may do for a row of logits, where there is any.

A backend's kit has them (``BackendKit.rows``); without them everything is done in NumPy. A draw never depends on which:
noise words are integers, and a shortcut only narrows down what NumPy's arithmetic then decides.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class NoiseKey(NamedTuple):
    """Whose noise: the Philox key, and the counter without its first word."""

    key: tuple[int, int]
    counter: tuple[int, int, int]


class RowKernels(Protocol):
    """Compiled code. Rows are float32 [vocab]."""

    def noise_words(self, noise: NoiseKey, vocab_size: int, ids: NDArray[np.int64] | None) -> NDArray[np.uint32]:
        """The Philox words of a row's tokens, uint32 [vocab]; or [id] of ``ids``."""
        ...

    def contenders(
        self, row: NDArray[np.float32], temperature: float, floor: float, noise: NoiseKey
    ) -> NDArray[np.int64]:
        """Tokens, ascending, among which the argmin of E / p is: p proportional to exp(logit / temperature) where
        logit >= floor, E the row's exponential noise. Hardly ever more than one; none: it cannot be told."""
        ...

    def ranked(self, row: NDArray[np.float32], rank: int) -> float:
        """The rank-th highest logit, from 1; there is no NaN in the row."""
        ...

    def mass(self, row: NDArray[np.float32], peak: float, temperature: float) -> float:
        """The sum of exp((logit - peak) / temperature), to within ``MASS_ERROR`` of itself."""
        ...


MASS_ERROR = 1e-5
