"""Multi-token modules by PyTorch: decoder layers of the target's own kind, one step for each token ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.decoder import Decoder, moved
from headstart.backends.torch.draft_pool import DraftLayout, DraftPool, PooledDraftCache
from headstart.backends.torch.head_kit import Kit, best_tokens
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.mixers import cache_row, sights_of
from headstart.backends.torch.module_chain import ModuleChain
from headstart.backends.torch.norms import Norm
from headstart.backends.torch.states import LayerStore
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.models.layers.hyper import merged
from headstart.models.linear_weights import LinearWeights
from headstart.models.multi_token_modules import MultiTokenModule, MultiTokenModules
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
        self._streams = modules.streams
        self._config, self._end = config, None if own.hyper_end is None else moved(own.hyper_end, device)

    @property
    def nbytes(self) -> int:
        return self._projection.nbytes

    def read(self, embeddings: Tensor, states: Tensor) -> Tensor:
        """Tokens and the states before them, [row, hidden] each -> the layer's input; of streams, which stand side by
        side, [row, stream, hidden]."""
        if self._streams is not None:
            states = states.reshape(-1, embeddings.shape[-1])
            embeddings = embeddings.repeat_interleave(self._streams, 0)
        parts = [self._embedding_norm(embeddings), self._hidden_norm(states)]
        made = self._projection(torch.cat(parts[::-1] if self._hidden_first else parts, dim=-1))
        return made if self._streams is None else made.view(-1, self._streams, made.shape[-1])

    def normed(self, states: Tensor) -> Tensor:
        """What the layer gives -> what the output head reads."""
        return self.final_norm(states if self._streams is None else merged(self._config, self._end, states))


class MultiTokenPass(ModuleChain):
    """See ``ModuleChain`` (``ModulesPass``).

    Args:
        modules: weights, copied.
        tables: the target's.
        dtype: of weights and cache; norms and logits are float32.
    """

    text_eps: float | None = None

    @torch.inference_mode()
    def __init__(
        self, modules: MultiTokenModules, tables: TargetTables, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config = modules.config
        super().__init__(len(modules.modules), modules.state_size, dtype, torch.device(device))
        self._feeds_unnormed = modules.feeds_unnormed or modules.streams is not None
        self._modules = [_Module(modules, own, dtype, self.device) for own in modules.modules]
        first, own_heads = modules.modules[0], [tables.with_others(None, each) for each in modules.heads]
        tables = tables.with_others(modules.embedding, None)
        weights = DecoderWeights(
            embedding=tables.embedding,
            layers=tuple(own.layer for own in modules.modules),
            final_norm=first.final_norm,
            head=LinearWeights((own_heads or [tables])[0].head),
        )
        self._decoder = Decoder(config, weights, dtype, self.device)
        further = [Linear(LinearWeights(each.head), dtype, self.device) for each in own_heads[1:]]
        self._heads = [self._decoder.head, *further]
        self.target_ids = torch.arange(config.vocab_size)
        shapes: list[tuple[int, ...]] = [cache_row(config, layer) for layer in config.layers]
        if self._last:
            # What the next module reads of the row before.
            shapes.append((self._last, self._hidden))
        self._pool = DraftPool(shapes, dtype, self.device)

    @property
    def name(self) -> str:
        """See ``ModulesPass``."""
        return f"torch-{str(self.dtype).removeprefix('torch.')}"

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        further = sum(head.nbytes for head in self._heads[1:])
        return self._decoder.nbytes + sum(module.nbytes for module in self._modules) + further

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        return sum(math.prod(each.shape[1:]) * each.itemsize for each in self._pool.tensors)

    def new_cache(self) -> PooledDraftCache:
        return PooledDraftCache(self._pool, range(len(self._modules)))

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(logits, ranks)

    def text_rows(self, vocab_size: int) -> None:
        """Nothing is left out."""

    def growth(self, width: int, ids: IntArray) -> None:
        """Step by step."""

    def _run(
        self,
        index: int,
        tokens: IntArray,
        before: Tensor,
        groups: Sequence[DraftRows],
        counts: Sequence[int],
        said: IntArray,
    ) -> tuple[Tensor, Tensor]:
        for group in groups:
            _cache(group.cache).reserve(group.cache.rows + group.count)
        module, layer, config = self._modules[index], self._decoder.layers[index], self.config
        ((sight, heads),) = sights_of(config, [layer.layer]).items()
        layout = DraftLayout(groups, counts, index, sight, heads, self.dtype, self.device)
        ids, places = (torch.from_numpy(each).long().to(self.device) for each in (tokens, _positions(groups, counts)))
        embeddings, shared = self._decoder.embed(ids, places), self._decoder.at(places, layout)
        store = LayerStore(self._pool.tensors[index])
        states, speaking = layer(module.read(embeddings, before), store, shared), torch.from_numpy(said).long()
        normed, head = module.normed(states), self._heads[min(index, len(self._heads) - 1)]
        logits = self._decoder.logits(normed[speaking.to(self.device)], head)
        return states.flatten(1) if self._feeds_unnormed else normed, logits

    def _lacking(self, cache: DraftCache, index: int) -> int:
        return _cache(cache).lacking[index]

    def _trail(self, cache: DraftCache, row: int) -> Tensor:
        return self._pool.tensors[-1][self._pool.index(_cache(cache).slots(row, row + 1))][0]

    def _keep_trail(self, cache: DraftCache, trail: Tensor) -> None:
        _cache(cache).reserve(cache.rows + len(trail))
        slots = _cache(cache).slots(cache.rows, cache.rows + len(trail))
        self._pool.tensors[-1][self._pool.index(slots)] = trail


def _positions(groups: Sequence[DraftRows], counts: Sequence[int]) -> NDArray[np.int64]:
    """Of the last ``counts`` rows of each group."""
    of_groups = zip(groups, counts, strict=True)
    return np.array([place for group, count in of_groups for place in list(group.positions)[group.count - count :]])


def _cache(cache: DraftCache) -> PooledDraftCache:
    assert isinstance(cache, PooledDraftCache)
    return cache


def modules_pass(modules: MultiTokenModules, tables: TargetTables, kit: Kit, vocabulary: int = 0) -> MultiTokenPass:
    """As ``HeadPasses.torch`` has it; all tokens can be said, whatever ``vocabulary``."""
    return MultiTokenPass(modules, tables, kit.dtype, kit.device)
