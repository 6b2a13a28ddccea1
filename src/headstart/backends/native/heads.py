"""Trained heads on the native library: an EAGLE head's step as one call, and what parallel heads are made of."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.draft_cache import NativeDraftCache, PagePool
from headstart.backends.native.growth import NativeGrowth, told_of
from headstart.backends.native.library import Library, Pass, Shape
from headstart.backends.native.loader import load_library
from headstart.backends.native.packing import (
    BORROWED,
    FEATURE_NORM,
    FINAL_NORM,
    FUSE,
    NORMS,
    OUTPUT_HEAD,
    PART_NORMS,
    Packer,
    RopeTables,
    RowTable,
    address,
    as_float32,
    as_int32,
    create_model,
)
from headstart.backends.native.precision import Precision, library_number
from headstart.backends.native.team import team_size
from headstart.backends.torch.parallel_pass import Kit
from headstart.errors import ConfigError
from headstart.heads.eagle import EagleConfig, EagleHead
from headstart.heads.head_pass import DraftRows
from headstart.heads.tables import TargetTables
from headstart.heads.text_vocabulary import TextTokens, TextVocabulary
from headstart.models.weights import LinearWeights, NormWeights
from headstart.passes import IntArray

_FUSED, _BESIDE, _BESIDE_NORMED = 1, 2, 3
"""``Entry`` of ``src/pass/decoder.h``."""


def supports_head(config: EagleConfig) -> str | None:
    """None if the native pass can run such a head, else the reason in a few words."""
    if config.head_dim % 32 or config.head_dim > 256:
        return f"head_dim {config.head_dim} is no multiple of 32 up to 256"
    if config.rope.dim % 32 or config.rope.dim > config.head_dim:
        return f"{config.rope.dim} rotated dimensions are no multiple of 32 up to head_dim {config.head_dim}"
    if config.norm_before_fc and config.fc_norm:
        return "true features are normed twice"
    return None


class NativeEaglePass:
    """Steps of a head over rows of several sequences (``HeadPass``), each one native call.

    A row's bits do not depend on the rows beside it. States are float32.

    Args:
        head: weights, copied; ``supports_head`` of its configuration must be None.
        tables: the target's; used where the head has none of its own.
        precision: of matrices and cache, whatever the target's.
        threads: team size, None for ``backends.native.team``'s.
        isa: instruction set to use instead of the fastest (see ``load_library``).

    Raises:
        ConfigError: the head is not supported, or there is no native path on this machine.
    """

    def __init__(
        self,
        head: EagleHead,
        tables: TargetTables,
        precision: Precision = "bf16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.config = config = head.config
        reason = supports_head(config)
        library = load_library(isa)
        if reason is not None or library is None:
            raise ConfigError(f"no native pass for this head ({reason or 'none on this machine'}); use PyTorch")
        self._library = library
        embedding = (tables.embedding if head.embedding is None else head.embedding).detach().cpu()
        self._embedding = embedding.to(torch.float32 if precision == "fp32" else torch.bfloat16).contiguous()
        self._threads = threads or team_size()
        shape = _shape(config, len(embedding), precision, self._threads)
        self.handle = create_model(self, library, shape, f"the head as {precision}")
        self._ropes = RopeTables(library, self.handle, [config.rope])
        with torch.inference_mode():
            self._pack(head, tables)
        self._pages = PagePool(library, self.handle, config.num_layers)
        self._state_tap = np.array([-1 if config.norm_output else config.num_layers], dtype=np.int32)
        self.target_ids = head.target_ids.cpu()

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        return int(self._library.bytes(self.handle)) + self._embedding.nbytes

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        return self._pages.row_bytes

    def new_cache(self) -> NativeDraftCache:
        return NativeDraftCache(self._pages)

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        last = np.cumsum([group.count for group in groups], dtype=np.int32) - np.int32(1)
        states, logits = self._run(tokens, features, groups, last, true=True)
        return states[torch.from_numpy(last).long()], logits

    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        return self._run(tokens, states, groups, np.arange(len(tokens), dtype=np.int32), true=False)

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return best_tokens(self._library, logits, ranks)

    def text_tokens(self, vocabulary: TextVocabulary, most: int) -> TextTokens:
        """See ``HeadPass``. Rows are those that a stretch makes."""
        told = told_of(vocabulary)

        def rows_of(tokens: IntArray) -> Tensor:
            rows = torch.empty(len(tokens), self.config.hidden_size, dtype=torch.bfloat16)
            self._library.text_rows(
                ctypes.byref(told), rows.shape[1], self._threads, address(tokens), len(tokens), rows.data_ptr()
            )
            return rows

        return TextTokens(vocabulary, most, rows_of)

    def growth(self, width: int, ids: IntArray) -> NativeGrowth:
        """See ``HeadPass``."""
        return NativeGrowth(self._library, self.handle, self.config, self._pages, self._ropes, width, ids)

    def _run(
        self, tokens: IntArray, inputs: Tensor, groups: Sequence[DraftRows], wanted: IntArray, true: bool
    ) -> tuple[Tensor, Tensor]:
        """States and logits of the rows ``wanted``; the states stand at their rows."""
        config, rows = self.config, len(tokens)
        width = config.target_hidden_size * len(config.taps) if true else config.hidden_size
        if inputs.shape != (rows, width):
            raise ValueError(f"features are {tuple(inputs.shape)}; rows x features is {(rows, width)}")
        cached = np.array([group.true_rows for group in groups], dtype=np.int32)
        positions = np.array([position for group in groups for position in group.positions], dtype=np.int32)
        starts = np.cumsum([0, *(group.count for group in groups)], dtype=np.int32)
        # A true row follows the one before it.
        parents, paths = (
            (_chains(starts), None) if true else (None, np.concatenate([_slots(group) for group in groups]))
        )
        blocks, tokens = self._take_pages(groups), as_int32(tokens)
        self._ropes.reach(int(positions.max()) + 1)
        inputs = as_float32(inputs)
        states = torch.empty(rows, config.hidden_size)
        logits = torch.empty(len(wanted), config.draft_vocab_size)
        arguments = Pass(
            rows=rows,
            sequences=len(groups),
            blocks_per_sequence=blocks.shape[1],
            pages_per_block=1,
            wanted=len(wanted),
            layers=config.num_layers,
            taps=1,
            tokens=address(tokens),
            positions=address(positions),
            parents=None if parents is None else address(parents),
            row_starts=address(starts),
            cached_lengths=address(cached),
            block_tables=address(blocks),
            logit_rows=address(wanted),
            tap_layers=address(self._state_tap),
            inputs=inputs.data_ptr(),
            true_features=true,
            path_length=0 if paths is None else paths.shape[1],
            paths=None if paths is None else address(paths),
            logits=logits.data_ptr(),
            tap_rows=(ctypes.c_void_p * 1)(states.data_ptr()),
            lean=True,
        )
        error = self._library.forward(self.handle, self._pages.storage.handle, ctypes.byref(arguments))
        if error is not None:
            raise ValueError(f"the head cannot step: {error.decode()}")
        for group in groups:
            group.cache.rows += group.count
        return states, logits

    def _take_pages(self, groups: Sequence[DraftRows]) -> IntArray:
        """int32 [group, page] tables with room for the rows of a step."""
        tables = []
        for group in groups:
            assert isinstance(group.cache, NativeDraftCache)
            group.cache.reserve(group.cache.rows + group.count)
            tables.append(group.cache.pages)
        longest = max(map(len, tables))
        return np.array([[*pages, *[0] * (longest - len(pages))] for pages in tables], dtype=np.int32)

    def _pack(self, head: EagleHead, tables: TargetTables) -> None:
        config, packer = self.config, Packer(self._library, self.handle)
        for index, layer in enumerate(head.layers):
            self._library.set_layer(self.handle, index, 0, 0, 0)
            for which, linear in enumerate(layer.fused()):
                packer.linear(index, which, linear)
            packer.norm(index, NORMS.index("mlp_norm"), NormWeights(layer.post_attention_layernorm.weight))
            if index > 0 or config.variant == "eagle3":
                packer.norm(index, NORMS.index("attention_norm"), NormWeights(layer.input_layernorm.weight))
        packer.linear(-1, FUSE, LinearWeights(head.fc.weight, head.fc.bias))
        if config.variant == "eagle3":
            packer.norm(-1, FEATURE_NORM, NormWeights(head.layers[0].hidden_norm.weight))
            packer.norm(-1, FINAL_NORM, NormWeights(head.norm.weight))
            packer.linear(-1, OUTPUT_HEAD, LinearWeights(head.lm_head.weight))
        else:
            packer.linear(-1, OUTPUT_HEAD, LinearWeights(tables.head))
        count = 1 if config.norm_before_fc else len(config.taps) if config.fc_norm else 0
        for i in range(count):
            name = "input_norm" if config.norm_before_fc else f"fc_norm.{i}"
            packer.norm(-1, PART_NORMS + i, NormWeights(head.get_parameter(f"{name}.weight")))
        packer.embedding(self._embedding, None, BORROWED)


class NativeLinear:
    """y = x W^T + b on float32 rows, packed like the layers of a pass.

    Args:
        bits: of weights in blocks (int4, int4-fast), as ``formats`` has them.

    Raises:
        ConfigError: memory is short.
    """

    def __init__(
        self, library: Library, weights: LinearWeights, precision: Precision, threads: int, bits: int = 4
    ) -> None:
        table = RowTable(weights.matrix)
        bias = None if weights.bias is None else as_float32(weights.bias)
        self._outputs, self._inputs = weights.matrix.shape
        handle = library.linear_create(
            library_number(precision),
            threads,
            self._outputs,
            self._inputs,
            table.rows,
            table.count,
            None if bias is None else bias.data_ptr(),
            bits,
        )
        if not handle:
            raise ConfigError(f"a matrix of {self._outputs} x {self._inputs} does not fit in memory as {precision}")
        self._handle: int = handle
        self._library = library
        weakref.finalize(self, library.linear_destroy, handle)
        self.nbytes = int(library.linear_bytes(handle))

    def __call__(self, x: Tensor) -> Tensor:
        """[row, in] -> float32 [row, out]."""
        if x.shape[1:] != (self._inputs,):
            raise ValueError(f"rows are {tuple(x.shape)}; rows x inputs is {(len(x), self._inputs)}")
        x = as_float32(x)
        y = torch.empty(len(x), self._outputs)
        error = self._library.linear_run(self._handle, len(x), x.data_ptr(), y.data_ptr())
        if error is not None:
            raise ValueError(f"the layer cannot run: {error.decode()}")
        return y


FASTEST_PRECISION: Precision = "int4-fast"
"""Where a little less precision does not matter: a draft's few rows take less time the fewer bytes are read."""


def native_kit(precision: Precision = "bf16", threads: int | None = None, isa: str | None = None) -> Kit | None:
    """Everything by the native library; None if there is none on this machine."""
    library = load_library(isa)
    if library is None:
        return None
    team = threads or team_size()
    return Kit(
        torch.float32,
        lambda weights: NativeLinear(library, weights, precision, team),
        torch.device("cpu"),
        partial(best_tokens, library),
    )


def best_tokens(library: Library, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
    """``best_tokens``, of equal logits the first."""
    rows, size = logits.shape
    logits = as_float32(logits)
    log_probs, ids = np.empty((rows, ranks), np.float32), np.empty((rows, ranks), np.int32)
    library.best(logits.data_ptr(), rows, size, ranks, address(log_probs), address(ids))
    return log_probs, ids


def _slots(group: DraftRows) -> IntArray:
    """int32 [row, level] of a draft's rows, counted from the first in the cache."""
    assert group.paths is not None
    return as_int32(group.paths + np.int32(group.true_rows))


def _chains(starts: IntArray) -> IntArray:
    """int32 [row] the row before each, -1 at the starts."""
    parents = np.arange(-1, starts[-1] - 1, dtype=np.int32)
    parents[starts[:-1]] = -1
    return parents


def _shape(config: EagleConfig, tokens: int, precision: Precision, threads: int) -> Shape:
    entry = _FUSED if config.variant == "eagle" else _BESIDE_NORMED if config.norm_before_residual else _BESIDE
    return Shape(
        vocab=config.draft_vocab_size,
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp=config.mlp_size,
        layers=config.num_layers,
        precision=library_number(precision),
        threads=threads,
        gated=True,
        entry=entry,
        features=config.target_hidden_size * len(config.taps),
        tokens=tokens,
        norm_eps=config.norm_eps,
        attention_scale=config.head_dim**-0.5,
        embedding_scale=1.0,
        tap_scale=1.0,
    )
