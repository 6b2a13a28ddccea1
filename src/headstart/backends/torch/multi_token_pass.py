"""Multi-token modules by PyTorch: decoder layers of the target's own kind, one step for each token ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.decoder import Decoder
from headstart.backends.torch.draft_pool import DraftLayout, DraftPool, PooledDraftCache
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.mixers import cache_row, sights_of
from headstart.backends.torch.norms import Norm
from headstart.backends.torch.parallel_pass import best_tokens
from headstart.backends.torch.states import LayerStore
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextTokens, TextVocabulary
from headstart.models.linear_weights import LinearWeights
from headstart.models.multi_token import MultiTokenModule, MultiTokenModules
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import IntArray


class _Module:
    """What stands around a module's layer: how its input is made, and its last norm."""

    def __init__(self, modules: MultiTokenModules, own: MultiTokenModule, dtype: torch.dtype, device: torch.device):
        config = modules.config
        self._hidden_first = modules.hidden_first
        self._embedding_norm = Norm.of(config, own.embedding_norm, device)
        self._hidden_norm = Norm.of(config, own.hidden_norm, device)
        self._projection = Linear(own.projection, dtype, device)
        self.final_norm = Norm.of(config, own.final_norm, device)

    @property
    def nbytes(self) -> int:
        return self._projection.nbytes

    def read(self, embeddings: Tensor, states: Tensor) -> Tensor:
        """Tokens and the states before them, [row, hidden] each -> the layer's input."""
        parts = [self._embedding_norm(embeddings), self._hidden_norm(states)]
        return self._projection(torch.cat(parts[::-1] if self._hidden_first else parts, dim=-1))


class MultiTokenPass:
    """Steps of a checkpoint's modules over rows of several sequences (``HeadPass``).

    What the modules make of a row stands side by side in the state that is fed back. Module k reads a token and what
    module k - 1 made of the token before it, so of the tokens that a draft adds at depth d the modules from d + 1 on
    have a row; beyond the last module that one goes on from its own states.

    Args:
        modules: weights, copied.
        tables: the target's.
        dtype: of weights and cache; norms and logits are float32.
    """

    @torch.inference_mode()
    def __init__(
        self,
        modules: MultiTokenModules,
        tables: TargetTables,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config = modules.config
        self.dtype, self.device = dtype, torch.device(device)
        self._modules = [_Module(modules, own, dtype, self.device) for own in modules.modules]
        first = modules.modules[0]
        weights = DecoderWeights(
            embedding=tables.embedding,
            layers=tuple(own.layer for own in modules.modules),
            final_norm=first.final_norm,
            head=LinearWeights(tables.head),
        )
        self._decoder = Decoder(config, weights, dtype, self.device)
        self.target_ids = torch.arange(config.vocab_size)
        self._last = len(self._modules) - 1
        shapes: list[tuple[int, ...]] = [cache_row(config, layer) for layer in config.layers]
        if self._last:
            # What the next module reads of the row before.
            shapes.append((self._last * config.hidden_size,))
        self._pool = DraftPool(shapes, dtype, self.device)

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        return self._decoder.nbytes + sum(module.nbytes for module in self._modules)

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        return sum(math.prod(each.shape[1:]) * each.itemsize for each in self._pool.tensors)

    def new_cache(self) -> PooledDraftCache:
        return PooledDraftCache(self._pool, range(len(self._modules)))

    @torch.inference_mode()
    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``; a state holds [module, hidden]."""
        counts = [group.count for group in groups]
        ends = np.cumsum(counts)
        positions = _positions(groups)
        embeddings = self._embed(tokens, positions)
        before = features.to(self.device, self.dtype)
        made = before.new_zeros(len(tokens), len(self._modules), self.config.hidden_size)
        self._reserve(groups)
        for index in range(len(self._modules)):
            if index:
                before = self._shifted(made[:, index - 1], index - 1, groups, ends)
            own = [
                min(group.count, max(group.cache.rows + group.count - _cache(group).lacking[index], 0))
                for group in groups
            ]
            kept = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, own, strict=True)])
            if len(kept):
                rows = torch.from_numpy(kept).to(self.device)
                made[rows, index] = self._run(index, embeddings[rows], before[rows], positions[kept], groups, own)
        if self._last:
            trail = made[:, : self._last].flatten(1)
            for group, end in zip(groups, ends, strict=True):
                slots = _cache(group).slots(group.cache.rows, group.cache.rows + group.count)
                self._pool.tensors[-1][self._pool.index(slots)] = trail[end - group.count : end]
        for group in groups:
            group.cache.rows += group.count
        states = made[torch.from_numpy(ends - 1).to(self.device)]
        return states.flatten(1), self._decoder.logits(states[:, 0])

    @torch.inference_mode()
    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        paths = groups[0].paths
        assert paths is not None
        depth = paths.shape[1]
        positions = _positions(groups)
        embeddings = self._embed(tokens, positions)
        parents = states.view(len(tokens), len(self._modules), -1)
        made = torch.zeros_like(parents)
        self._reserve(groups)
        counts = [group.count for group in groups]
        for index in range(min(depth, self._last), self._last + 1):
            before = parents[:, index - 1 if index >= depth else index]
            made[:, index] = self._run(index, embeddings, before, positions, groups, counts)
        for group in groups:
            group.cache.rows += group.count
        return made.flatten(1), self._decoder.logits(made[:, min(depth, self._last)])

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(logits, ranks)

    def text_tokens(self, vocabulary: TextVocabulary, most: int) -> TextTokens:
        """See ``HeadPass``."""
        return TextTokens(vocabulary, most)

    def growth(self, width: int, ids: IntArray) -> None:
        """Step by step."""

    def _run(
        self,
        index: int,
        embeddings: Tensor,
        before: Tensor,
        positions: NDArray[np.int64],
        groups: Sequence[DraftRows],
        counts: Sequence[int],
    ) -> Tensor:
        """One module over its rows: the last ``counts`` of each group. [row, hidden] after its last norm."""
        module, layer, config = self._modules[index], self._decoder.layers[index], self.config
        ((sight, heads),) = sights_of(config, [layer.layer]).items()
        layout = DraftLayout(groups, counts, index, sight, heads, self.dtype, self.device)
        shared = self._decoder.at(torch.from_numpy(positions).to(self.device), layout)
        store = LayerStore(self._pool.tensors[index])
        return module.final_norm(layer(module.read(embeddings, before), store, shared))

    def _shifted(self, made: Tensor, index: int, groups: Sequence[DraftRows], ends: NDArray[np.int64]) -> Tensor:
        """What a module made of the row before each row; zeros where there is none."""
        shifted = torch.zeros_like(made)
        size = self.config.hidden_size
        for group, end in zip(groups, ends.tolist(), strict=True):
            first = end - group.count
            shifted[first + 1 : end] = made[first : end - 1]
            if group.cache.rows:
                slot = _cache(group).slots(group.cache.rows - 1, group.cache.rows)
                trail = self._pool.tensors[-1][self._pool.index(slot)]
                shifted[first : first + 1] = trail[:, index * size : (index + 1) * size]
        return shifted

    def _embed(self, tokens: IntArray, positions: NDArray[np.int64]) -> Tensor:
        ids, places = (torch.from_numpy(each).long().to(self.device) for each in (tokens, positions))
        return self._decoder.embed(ids, places)

    @staticmethod
    def _reserve(groups: Sequence[DraftRows]) -> None:
        for group in groups:
            _cache(group).reserve(group.cache.rows + group.count)


def _positions(groups: Sequence[DraftRows]) -> NDArray[np.int64]:
    return np.array([position for group in groups for position in group.positions], dtype=np.int64)


def _cache(group: DraftRows) -> PooledDraftCache:
    assert isinstance(group.cache, PooledDraftCache)
    return group.cache
