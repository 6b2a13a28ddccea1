"""Multi-token modules one behind the other: which of them has a row of what, whoever computes a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.text_vocabulary import TextRowSource, TextTokens
from headstart.passes.batch import IntArray


class ModuleChain(ABC):
    """Steps of a checkpoint's modules over rows of several sequences (``HeadPass``).

    What the modules make of a row stands side by side in the state that is fed back. Module k reads a token and what
    module k - 1 made of the token before it, so of the tokens that a draft adds at depth d the modules from d + 1 on
    have a row; beyond the last module that one goes on from its own states.

    Args:
        count: of modules.
        hidden: size of a state.
        dtype: of states.
    """

    def __init__(self, count: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self._last, self._hidden = count - 1, hidden
        self.dtype, self.device = dtype, device

    @abstractmethod
    def _run(
        self,
        index: int,
        tokens: IntArray,
        before: Tensor,
        groups: Sequence[DraftRows],
        counts: Sequence[int],
        said: IntArray,
    ) -> tuple[Tensor, Tensor]:
        """One module over its rows, the last ``counts`` of each group: states [row, hidden] that are fed back, and
        float32 logits [said, vocab] after the rows ``said``, int32 and ascending."""

    @abstractmethod
    def _lacking(self, cache: DraftCache, index: int) -> int:
        """Rows at the beginning of a cache that a module lacks."""

    @abstractmethod
    def _trail(self, cache: DraftCache, row: int) -> Tensor:
        """[modules but the last, hidden] what they made of a true row."""

    @abstractmethod
    def _keep_trail(self, cache: DraftCache, trail: Tensor) -> None:
        """Keep that [row, modules but the last, hidden] of the rows behind those in the cache."""

    @torch.inference_mode()
    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``; a state holds [module, hidden]."""
        ends = np.cumsum([group.count for group in groups])
        before = features.to(self.device, self.dtype)
        made = before.new_zeros(len(tokens), self._last + 1, self._hidden)
        logits = made.new_empty(0)
        for index in range(self._last + 1):
            said = np.empty(0, np.int32) if index else (ends - 1).astype(np.int32)
            if index:
                before = self._shifted(made[:, index - 1], index - 1, groups, ends)
            own = [
                min(group.count, max(group.cache.rows + group.count - self._lacking(group.cache, index), 0))
                for group in groups
            ]
            kept = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, own, strict=True)])
            if len(kept):
                rows = torch.from_numpy(kept).to(self.device)
                made[rows, index], said_of = self._run(index, tokens[kept], before[rows], groups, own, said)
                logits = logits if index else said_of
        for group, end in zip(groups, ends, strict=True):
            if self._last:
                self._keep_trail(group.cache, made[end - group.count : end, : self._last])
            group.cache.rows += group.count
        states = made[torch.from_numpy(ends - 1).to(self.device)]
        return states.flatten(1), logits

    @torch.inference_mode()
    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        paths = groups[0].paths
        assert paths is not None
        depth = paths.shape[1]
        parents = states.view(len(tokens), self._last + 1, -1)
        made = torch.zeros_like(parents)
        counts, logits = [group.count for group in groups], made.new_empty(0)
        speaking = min(depth, self._last)
        for index in range(speaking, self._last + 1):
            before = parents[:, index - 1 if index >= depth else index]
            said = np.arange(len(tokens) if index == speaking else 0, dtype=np.int32)
            made[:, index], said_of = self._run(index, tokens, before, groups, counts, said)
            logits = said_of if index == speaking else logits
        for group in groups:
            group.cache.rows += group.count
        return made.flatten(1), logits

    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens:
        """See ``HeadPass``."""
        return TextTokens(vocabulary, most)

    def said_states(self, states: Tensor, level: int) -> Tensor:
        """See ``ModulesPass``."""
        return states.view(len(states), self._last + 1, -1)[:, min(level - 1, self._last)]

    def _shifted(self, made: Tensor, index: int, groups: Sequence[DraftRows], ends: NDArray[np.int64]) -> Tensor:
        """What a module made of the row before each row; zeros where there is none."""
        shifted = torch.zeros_like(made)
        for group, end in zip(groups, ends.tolist(), strict=True):
            first = end - group.count
            shifted[first + 1 : end] = made[first : end - 1]
            if group.cache.rows:
                shifted[first] = self._trail(group.cache, group.cache.rows - 1)[index]
        return shifted
