"""What heads on the native pass share that keep keys and values of what they have read."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.draft_cache import NativeDraftCache, PagePool
from headstart.backends.native.growth import NativeGrowth, OnePass, told_of
from headstart.backends.native.library import BlockConvolution, Layer, Library, Pass, Shape
from headstart.backends.native.linear import best_tokens
from headstart.backends.native.loader import load_library
from headstart.backends.native.packing import BORROWED, NORMS, Packer, RopeTables, address, create_model
from headstart.backends.native.precision import Precision, library_number
from headstart.backends.native.team import team_size
from headstart.drafting.heads.head_pass import DraftCache
from headstart.drafting.heads.modules import HeadLayer, LayersConfig
from headstart.drafting.heads.text_vocabulary import TextRowSource, TextTokens
from headstart.drafting.methods.dflash.head import BlockConfig
from headstart.errors import ConfigError
from headstart.models.config import Activation, Channel, Mixer, NormKind, RopeConfig
from headstart.models.linear_weights import NormWeights
from headstart.passes.batch import IntArray


def unfit_heads(config: LayersConfig) -> str | None:
    """None if the native pass has attention of such heads, else the reason in a few words."""
    if config.head_dim % 32 or config.head_dim > 256:
        return f"head_dim {config.head_dim} is no multiple of 32 up to 256"
    if config.rope.dim % 32 or config.rope.dim > config.head_dim:
        return f"{config.rope.dim} rotated dimensions are no multiple of 32 up to head_dim {config.head_dim}"
    return None


class CachingModel:
    """A packed head, and what it borrows.

    Args:
        shape: of the model behind ``handle``.
        owner: keeps the model.
        alive: what the library borrows, its embedding among it.
        table_bytes: of the embedding, as far as it is a copy.
    """

    def __init__(
        self, library: Library, handle: int, shape: Shape, owner: object, alive: object, table_bytes: int = 0
    ) -> None:
        self.library, self.handle, self.shape = library, handle, shape
        self.table_bytes = table_bytes
        self._alive = (owner, alive)


class _Owner:
    """With it a model of the library is destroyed."""


def trained_model(
    config: LayersConfig,
    unfit: str | None,
    entry: int,
    embedding: Tensor,
    precision: Precision,
    threads: int | None,
    isa: str | None,
) -> CachingModel:
    """A trained head without weights yet.

    Args:
        unfit: why it cannot run, if so.
        entry: ``Entry`` of ``src/pass/decoder.h``.
        embedding: [vocab, hidden] that its rows read, copied.
        precision: of matrices and cache, whatever the target's.
        threads: team size, None for ``backends.native.team``'s.
        isa: instruction set to use instead of the fastest (see ``load_library``).

    Raises:
        ConfigError: the head is not supported, or there is no native path on this machine.
    """
    library = load_library(isa)
    if unfit is not None or library is None:
        raise ConfigError(f"no native pass for this head ({unfit or 'none on this machine'}); use PyTorch")
    embedding = embedding.detach().cpu()
    embedding = embedding.to(torch.float32 if precision == "fp32" else torch.bfloat16).contiguous()
    shape = _shape(config, entry, len(embedding), precision, threads or team_size())
    layers = [_layer(config, index) for index in range(config.num_layers)]
    owner = _Owner()
    handle = create_model(owner, library, shape, layers, f"the head as {precision}")
    Packer(library, handle).embedding(embedding, None, BORROWED)
    return CachingModel(library, handle, shape, owner, embedding, embedding.nbytes)


class NativeCachingPass:
    """A packed head, and the pages of its sequences (``CachingHeadPass``).

    Args:
        ropes: of its layers.
        target_ids: int64 [draft vocab].
    """

    def __init__(self, model: CachingModel, ropes: Sequence[RopeConfig], target_ids: Tensor) -> None:
        self._model = model
        self._library, self.handle = model.library, model.handle
        self._hidden, self._features = model.shape.hidden, model.shape.features
        self._threads, self._layers = model.shape.threads, model.shape.layers
        self._ropes = RopeTables(self._library, self.handle, ropes)
        self._pages = PagePool(self._library, self.handle, self._layers)
        self.target_ids = target_ids.cpu()

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        return int(self._library.bytes(self.handle)) + self._model.table_bytes

    @property
    def row_bytes(self) -> int:
        """See ``CachingHeadPass``."""
        return self._pages.row_bytes

    def new_cache(self) -> NativeDraftCache:
        return NativeDraftCache(self._pages)

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(self._library, logits, ranks)

    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens:
        """See ``CachingHeadPass``. Rows are those that a stretch makes."""
        told = told_of(vocabulary)

        def rows_of(tokens: IntArray) -> Tensor:
            rows = torch.empty(len(tokens), self._hidden, dtype=torch.bfloat16)
            self._library.text_rows(
                ctypes.byref(told), rows.shape[1], self._threads, address(tokens), len(tokens), rows.data_ptr()
            )
            return rows

        return TextTokens(vocabulary, most, rows_of)

    def _growth(self, width: int, ids: IntArray, state_tap: int, one_pass: OnePass | None = None) -> NativeGrowth:
        """What makes whole drafts, see ``NativeGrowth``."""
        return NativeGrowth(
            self._library, self.handle, self._features, state_tap, self._pages, self._ropes, width, ids, one_pass
        )

    def _page_tables(self, caches: Iterable[DraftCache], counts: Sequence[int]) -> IntArray:
        """int32 [cache, page] tables with room for ``counts`` more rows."""
        tables = []
        for cache, count in zip(caches, counts, strict=True):
            assert isinstance(cache, NativeDraftCache)
            cache.reserve(cache.rows + count)
            tables.append(cache.pages)
        longest = max(map(len, tables))
        return np.array([[*pages, *[0] * (longest - len(pages))] for pages in tables], dtype=np.int32)

    def _compute(
        self,
        caches: Sequence[DraftCache],
        cached: IntArray,
        starts: IntArray,
        tokens: IntArray,
        wanted: IntArray,
        tap: IntArray,
        lean: bool = True,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """One pass: states [row, hidden] that ``tap`` int32 [1] names, and logits [wanted, draft vocab].

        Args:
            caches: of the sequences.
            cached: int32 [sequence] rows of each that stand before these.
            starts: int32 [sequence + 1] first row of each, and the end.
            lean: states of the rows ``wanted`` are enough.
            more: further fields of ``Pass``.
        """
        blocks = self._page_tables(caches, np.diff(starts).tolist())
        firsts = np.array([cache.first for cache in caches], dtype=np.int32)
        states = torch.empty(len(tokens), self._hidden)
        logits = torch.empty(len(wanted), len(self.target_ids))
        arguments = Pass(
            rows=len(tokens),
            sequences=len(caches),
            blocks_per_sequence=blocks.shape[1],
            pages_per_block=1,
            wanted=len(wanted),
            layers=self._layers,
            taps=1,
            tokens=address(tokens),
            row_starts=address(starts),
            cached_lengths=address(cached),
            first_positions=address(firsts),
            block_tables=address(blocks),
            logit_rows=address(wanted),
            tap_layers=address(tap),
            logits=logits.data_ptr(),
            tap_rows=(ctypes.c_void_p * 1)(states.data_ptr()),
            lean=lean,
            **more,
        )
        error = self._library.forward(self.handle, self._pages.storage.handle, ctypes.byref(arguments))
        if error is not None:
            raise ValueError(f"the head cannot step: {error.decode()}")
        return states, logits

    def _pack_layers(self, packer: Packer, layers: Sequence[HeadLayer], first_is_normed: bool = True) -> None:
        """Matrices and norms that all layers have; ``first_is_normed``: the first norms what it reads by itself."""
        for index, layer in enumerate(layers):
            for which, linear in enumerate(layer.fused()):
                packer.linear(index, which, linear)
            packer.norm(index, NORMS.index("mlp_norm"), NormWeights(layer.post_attention_layernorm.weight))
            if layer.self_attn.norms_heads:
                packer.norm(index, NORMS.index("q_norm"), NormWeights(layer.self_attn.q_norm.weight))
                packer.norm(index, NORMS.index("k_norm"), NormWeights(layer.self_attn.k_norm.weight))
            if index > 0 or first_is_normed:
                packer.norm(index, NORMS.index("attention_norm"), NormWeights(layer.input_layernorm.weight))


def chains(starts: IntArray) -> IntArray:
    """int32 [row] the row before each, -1 at the starts."""
    parents = np.arange(-1, starts[-1] - 1, dtype=np.int32)
    parents[starts[:-1]] = -1
    return parents


def _layer(config: LayersConfig, index: int) -> Layer:
    return Layer(
        mixer=get_args(Mixer).index("attention"),
        channel=get_args(Channel).index("mlp"),
        window=config.sight(index)[0] or 0,
        looks_back=isinstance(config, BlockConfig) and config.looks_back(index),
        rope=0,
        head_dim=config.head_dim,
        value_dim=config.head_dim,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        reads=-1,
        mlp=config.mlp_size,
    )


def _shape(config: LayersConfig, entry: int, tokens: int, precision: Precision, threads: int) -> Shape:
    taps, group = (config.conv_taps, config.conv_group) if isinstance(config, BlockConfig) else (0, 0)
    return Shape(
        vocab=config.draft_vocab_size,
        hidden=config.hidden_size,
        heads=config.num_heads,
        layers=config.num_layers,
        precision=library_number(precision),
        threads=threads,
        norm=get_args(NormKind).index("rms"),
        activation=get_args(Activation).index("silu"),
        gated=True,
        entry=entry,
        features=config.target_hidden_size * len(config.taps),
        tokens=tokens,
        norm_eps=config.norm_eps,
        attention_scale=config.head_dim**-0.5,
        value_scale=1.0,
        embedding_scale=1.0,
        tap_scale=1.0,
        block_convolution=BlockConvolution(taps=taps, group=group),
    )
