"""What mixers that keep a state are told of the rows around them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

LookBack = Callable[[Tensor], Tensor]
"""What rows give to a convolution [row, channel] -> what each sees of it [row, length, channel]: those before it on its
path, nothing (zeros) before a text's first, and its own last."""
Step = Callable[[Tensor, Tensor | slice], tuple[Tensor, Tensor]]
"""States before some rows [row, ...] and which rows of the pass they are -> the states after them, and what the rows
give [row, ...]."""
Recur = Callable[[Step], Tensor]
"""What all rows give [row, ...], each from the state that the one before it has left."""
