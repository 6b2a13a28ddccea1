"""Several multi-token modules one behind the other on the native library: a call for each module and level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.draft_cache import NativeDraftCache
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.native.precision import Precision
from headstart.backends.native.stored_rows import RowsSideBySide
from headstart.backends.torch.module_chain import ModuleChain
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextRowSource
from headstart.models.multi_token_modules import MultiTokenModules
from headstart.passes.batch import IntArray

_FIRST_ROWS = 256


class _ChainCache(DraftCache):
    """Rows of every module, each of which lacks a few at the beginning, and what all but the last made of them."""

    def __init__(self, modules: Sequence[NativeModulePass], hidden: int) -> None:
        self.caches: list[NativeDraftCache] = [module.new_cache() for module in modules]
        self._begin_lacking(range(len(modules)))
        self.trail = torch.empty(0, len(modules) - 1, hidden)
        """float32 [row, module, hidden]."""

    def reserve(self, rows: int) -> None:
        """Make room for what is made of so many."""
        if rows > len(self.trail):
            trail = torch.empty(max(rows, 2 * len(self.trail), _FIRST_ROWS), *self.trail.shape[1:])
            trail[: self.rows] = self.trail[: self.rows]
            self.trail = trail

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        for cache, lacking in zip(self.caches, self.lacking, strict=True):
            cache.truncate(min(cache.rows, max(rows - lacking, 0)))
        if not rows:
            self._begin_lacking(range(len(self.caches)))

    def begin(self, first: int) -> None:
        self.first = first
        self.truncate(0)

    def _begin_lacking(self, lacking: Iterable[int]) -> None:
        """There are no rows; of each module so many will be lacking."""
        self.lacking = list(lacking)
        for cache, count in zip(self.caches, self.lacking, strict=True):
            cache.begin(self.first + count)

    def drop(self, rows: int) -> int:
        """See ``DraftCache``. Modules go on lacking as many rows at the beginning."""
        least = min(rows, *(cache.rows for cache in self.caches))
        dropped = max([cache.drop(least) for cache in self.caches])
        self.trail = self.trail[dropped:]
        self.rows -= dropped
        self.first += dropped
        return dropped

    def extend(self, other: DraftCache, first: int, count: int) -> None:
        """See ``DraftCache``."""
        assert isinstance(other, _ChainCache)
        if not self.rows:
            self.first = other.first + first
            self._begin_lacking(max(lacking - first, 0) for lacking in other.lacking)
        for ours, theirs, lacking in zip(self.caches, other.caches, other.lacking, strict=True):
            begin, end = max(first - lacking, 0), max(first + count - lacking, 0)
            if end > begin:
                ours.extend(theirs, begin, end - begin)
        self.reserve(self.rows + count)
        self.trail[self.rows : self.rows + count] = other.trail[first : first + count]
        self.rows += count

    def release(self) -> None:
        for cache in self.caches:
            cache.release()
        self.trail = self.trail[:0]
        self.truncate(0)


class NativeModuleChain(ModuleChain):
    """See ``ModuleChain`` (``ModulesPass``). Arguments as of ``NativeModulePass``."""

    text_eps: float | None = None

    def __init__(
        self,
        modules: MultiTokenModules,
        tables: TargetTables,
        precision: Precision = "bf16",
        vocabulary: int = 0,
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.config = modules.config
        super().__init__(len(modules.modules), modules.state_size, torch.float32, torch.device("cpu"))
        self._modules = [
            NativeModulePass(modules, tables, precision, vocabulary, index, threads, isa)
            for index in range(len(modules.modules))
        ]
        self.target_ids = self._modules[0].target_ids
        self._speak_apart = len(modules.heads) > 1 or modules.feeds_unnormed
        """Rows that say a token are each module's."""

    @property
    def name(self) -> str:
        """See ``ModulesPass``."""
        return self._modules[0].name

    @property
    def nbytes(self) -> int:
        """Of all matrices."""
        return sum(module.nbytes for module in self._modules)

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        trail = torch.float32.itemsize * self._last * self._hidden
        return sum(module.row_bytes for module in self._modules) + trail

    def new_cache(self) -> _ChainCache:
        return _ChainCache(self._modules, self._hidden)

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return self._modules[0].best(logits, ranks)

    def text_rows(self, vocab_size: int) -> TextRowSource | None:
        """See ``ModulesPass``."""
        if not self._speak_apart:
            return self._modules[0].text_rows(vocab_size)
        rows = [each for module in self._modules if (each := module.text_rows(vocab_size)) is not None]
        return RowsSideBySide(rows) if rows else None

    def said_states(self, states: Tensor, level: int) -> Tensor:
        """See ``ModulesPass``."""
        said = super().said_states(states, level)
        if not self._speak_apart:
            return said
        eps, speaking = self._modules[0].text_eps, min(level - 1, self._last)
        normed = said if eps is None else said * (said.square().mean(-1, keepdim=True) + eps).rsqrt()
        before, behind = speaking * self._hidden, (self._last - speaking) * self._hidden
        return torch.nn.functional.pad(normed, (before, behind))  # the others' rows say nothing

    def growth(self, width: int, ids: IntArray) -> None:
        """Step by step: what one call of the library runs is one module."""

    def _run(
        self,
        index: int,
        tokens: IntArray,
        before: Tensor,
        groups: Sequence[DraftRows],
        counts: Sequence[int],
        said: IntArray,
    ) -> tuple[Tensor, Tensor]:
        own = [
            DraftRows(_cache(group.cache).caches[index], count, group.paths)
            for group, count in zip(groups, counts, strict=True)
            if count
        ]
        return self._modules[index].rows(tokens, before, own, said)

    def _lacking(self, cache: DraftCache, index: int) -> int:
        return _cache(cache).lacking[index]

    def _trail(self, cache: DraftCache, row: int) -> Tensor:
        return _cache(cache).trail[row]

    def _keep_trail(self, cache: DraftCache, trail: Tensor) -> None:
        own = _cache(cache)
        own.reserve(own.rows + len(trail))
        own.trail[own.rows : own.rows + len(trail)] = trail


def _cache(cache: DraftCache) -> _ChainCache:
    assert isinstance(cache, _ChainCache)
    return cache


def modules_pass(
    modules: MultiTokenModules, tables: TargetTables, precision: Precision, vocabulary: int = 0, isa: str | None = None
) -> NativeModulePass | NativeModuleChain:
    """As ``HeadPasses.compiled`` has it.

    Args:
        vocabulary: how many of the target's first tokens are to be said; 0: all.
    """
    running = NativeModulePass if len(modules.modules) == 1 else NativeModuleChain
    return running(modules, tables, precision, vocabulary, isa=isa)
