"""Heads on the native library that guess token by token: a step is one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.caching_pass import CachingModel, NativeCachingPass, chains
from headstart.backends.native.growth import NativeGrowth
from headstart.backends.native.packing import address, as_float32, as_int32
from headstart.drafting.heads.head_pass import DraftRows
from headstart.models.config import RopeConfig
from headstart.passes.batch import IntArray


class NativeSteppingPass(NativeCachingPass):
    """Steps of a head over rows of several sequences (``HeadPass``), each one native call.

    A row's bits do not depend on the rows beside it. States are float32.

    Args:
        state_tap: which state is fed back: that of the last layer, or -1: the same behind the last norm.
    """

    def __init__(self, model: CachingModel, ropes: Sequence[RopeConfig], target_ids: Tensor, state_tap: int) -> None:
        super().__init__(model, ropes, target_ids)
        self._state_tap = np.array([state_tap], dtype=np.int32)

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        last = np.cumsum([group.count for group in groups], dtype=np.int32) - np.int32(1)
        states, logits = self._run(tokens, features, groups, last, true=True)
        return states[torch.from_numpy(last).long()], logits

    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        return self._run(tokens, states, groups, np.arange(len(tokens), dtype=np.int32), true=False)

    def growth(self, width: int, ids: IntArray) -> NativeGrowth:
        """See ``HeadPass``."""
        return self._growth(width, ids, int(self._state_tap[0]))

    def _run(
        self,
        tokens: IntArray,
        inputs: Tensor,
        groups: Sequence[DraftRows],
        wanted: IntArray,
        true: bool,
        lean: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """States and logits of the rows ``wanted``; the states stand at their rows. Not ``lean``: all rows' states."""
        rows, width = len(tokens), self._features if true else self._hidden
        if inputs.shape != (rows, width):
            raise ValueError(f"features are {tuple(inputs.shape)}; rows x features is {(rows, width)}")
        cached = np.array([group.true_rows for group in groups], dtype=np.int32)
        places = np.array([place for group in groups for place in group.places], dtype=np.int32)
        reach = max(group.cache.first + max(group.places) for group in groups) + 1
        starts = np.cumsum([0, *(group.count for group in groups)], dtype=np.int32)
        # A true row follows the one before it.
        parents, paths = (chains(starts), None) if true else (None, np.concatenate([_slots(group) for group in groups]))
        self._ropes.reach(reach)
        inputs = as_float32(inputs)
        states, logits = self._compute(
            [group.cache for group in groups],
            cached,
            starts,
            as_int32(tokens),
            wanted,
            self._state_tap,
            lean=lean,
            positions=address(places),
            parents=None if parents is None else address(parents),
            inputs=inputs.data_ptr(),
            true_features=true,
            path_length=0 if paths is None else paths.shape[1],
            paths=None if paths is None else address(paths),
        )
        for group in groups:
            group.cache.rows += group.count
        return states, logits


def _slots(group: DraftRows) -> IntArray:
    """int32 [row, level] of a draft's rows, counted from the first in the cache."""
    assert group.paths is not None
    return as_int32(group.paths + np.int32(group.true_rows))
