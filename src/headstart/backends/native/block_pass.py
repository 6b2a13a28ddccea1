"""A block head on the native library: states that are read and blocks that guess, in one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.caching_pass import NativeCachingPass, chains, trained_model, unfit_heads
from headstart.backends.native.growth import NativeGrowth, OnePass
from headstart.backends.native.library import Block
from headstart.backends.native.linear import NativeLinear, native_kit
from headstart.backends.native.matrices import LINEARS
from headstart.backends.native.packing import (
    CONSTANTS,
    FEATURE_NORM,
    FINAL_NORM,
    FUSE,
    OUTPUT_HEAD,
    Packer,
    address,
    as_float32,
    as_int32,
)
from headstart.backends.native.precision import Precision
from headstart.backends.torch.block_factors import BlockFactors
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockConfig, BlockHead
from headstart.drafting.methods.dflash.head_parts import candidates
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.passes.batch import IntArray

_BLOCK = 4
"""``Entry`` of ``src/pass/decoder.h``."""
_KERNELS = ("attention_kernels", "mlp_kernels")
"""Of the convolutions around a layer's parts (DFlash 2), whose linears stand behind ``LINEARS``."""


def supports_block(config: BlockConfig) -> str | None:
    """None if the native pass can run such a head, else the reason in a few words."""
    return unfit_heads(config)


class NativeBlockPass(NativeCachingPass):
    """Runs a block head (``BlockHeadPass``); states are float32, and a sequence's do not depend on those beside it.

    Args:
        head: weights, copied; ``supports_block`` of its configuration must be None.
        tables: the target's; used where the head has none of its own.
        precision: of matrices and cache, whatever the target's.
        threads: team size, None for ``backends.native.team``'s.
        isa: instruction set to use instead of the fastest (see ``load_library``).

    Raises:
        ConfigError: the head is not supported, or there is no native path on this machine.
    """

    def __init__(
        self,
        head: BlockHead,
        tables: TargetTables,
        precision: Precision = "bf16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.config = config = head.config
        embedding = tables.embedding if head.embedding is None else head.embedding
        model = trained_model(config, supports_block(config), _BLOCK, embedding, precision, threads, isa)
        super().__init__(model, [config.rope], head.target_ids)
        kit = native_kit(precision, self._threads, self._library.isa)
        assert kit is not None  # the library is there
        self._factors = BlockFactors(head, kit)
        if self._factors.chained:
            self._draft_ids = as_int32(self._factors.draft_ids.numpy())
        self.slots = config.slots
        self.chained, self.confident = self._factors.chained, self._factors.confident
        with torch.inference_mode():
            self._pack(head, tables)

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        return super().nbytes + self._factors.nbytes

    def read(self, features: Tensor, groups: Sequence[DraftRows]) -> None:
        """See ``BlockHeadPass``."""
        counts = [group.count for group in groups]
        if features.shape != (sum(counts), self._features):
            raise ValueError(
                f"features are {tuple(features.shape)}; rows x features is {(sum(counts), self._features)}"
            )
        self._run([group.cache for group in groups], counts, np.zeros(sum(counts), np.int32), as_float32(features))
        for group in groups:
            group.cache.rows += group.count

    def block(self, roots: IntArray, caches: Sequence[DraftCache], slots: int) -> tuple[Tensor, Tensor]:
        """See ``BlockHeadPass``."""
        config = self.config
        size, first = config.block_size, config.speaking.start
        tokens = np.full((len(caches), size), config.mask_token_id, np.int32)
        tokens[:, 0] = roots
        wanted = np.arange(len(caches) * size, dtype=np.int32).reshape(-1, size)[:, first : first + slots].ravel()
        states, logits = self._run(caches, [size] * len(caches), tokens.ravel(), None, wanted.copy())
        if config.selector_rank:
            logits = candidates(logits, config.selector_top)
        said = states[torch.from_numpy(wanted).long()]
        return said.view(len(caches), slots, -1), logits.view(len(caches), slots, -1)

    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self._factors.confidence(states, tokens)

    def following(self, tokens: Tensor, states: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self._factors.following(tokens, states)

    def growth(self, width: int, ids: IntArray, ends: bool) -> NativeGrowth:
        """See ``BlockHeadPass``."""
        config, factors = self.config, self._factors
        block = Block(rows=config.block_size, first_slot=config.speaking.start, causal=config.causal)
        if factors.chained:
            assert isinstance(factors.after, NativeLinear)  # made by the native kit
            block.following, block.rank, block.tokens = factors.after.handle, factors.rank, len(self._draft_ids)
            block.before, block.draft_ids = factors.before.data_ptr(), address(self._draft_ids)
            if factors.by_state is not None:
                assert isinstance(factors.by_state, NativeLinear)
                block.candidates, block.by_state = config.selector_top, factors.by_state.handle
        if factors.confident and ends:
            bias = factors.sureness.bias
            assert bias is not None
            block.sureness, block.sureness_bias = factors.sureness.weight.data_ptr(), float(bias)
            block.sureness_reads_token = config.confidence_reads_token
        one_pass = OnePass(config.slots, config.block_size, config.mask_token_id, block=block)
        return self._growth(width, ids, -1, one_pass)

    def _run(
        self,
        caches: Sequence[DraftCache],
        counts: Sequence[int],
        tokens: IntArray,
        features: Tensor | None,
        wanted: IntArray | None = None,
    ) -> tuple[Tensor, Tensor]:
        """States at their rows, and logits of the rows ``wanted``; with ``features`` all rows are context."""
        cached, starts = np.array([cache.rows for cache in caches], np.int32), np.cumsum([0, *counts], dtype=np.int32)
        parents, tap = chains(starts), np.full(1, -1, np.int32)
        self._ropes.reach(max(cache.first + cache.rows for cache in caches) + max(counts))
        return self._compute(
            caches,
            cached,
            starts,
            tokens,
            np.empty(0, np.int32) if wanted is None else wanted,
            tap,
            parents=address(parents),
            inputs=None if features is None else features.data_ptr(),
            context_rows=0 if features is None else len(tokens),
            both_ways=not self.config.causal,
        )

    def _pack(self, head: BlockHead, tables: TargetTables) -> None:
        packer = Packer(self._library, self.handle)
        self._pack_layers(packer, head.layers)
        for index, layer in enumerate(head.layers):
            if self.config.sinks:
                packer.sinks(index, layer.self_attn.attention_sink_bias)
            convolutions = (layer.attention_conv, layer.mlp_conv) if self.config.conv_taps else ()
            for which, conv in enumerate(convolutions):
                packer.linear(index, len(LINEARS) + which, LinearWeights(conv.kernel_projection.weight))
                packer.constant(index, CONSTANTS.index(_KERNELS[which]), conv.base_kernel)
        packer.linear(-1, FUSE, LinearWeights(head.fc.weight))
        packer.norm(-1, FEATURE_NORM, NormWeights(head.hidden_norm.weight))
        packer.norm(-1, FINAL_NORM, NormWeights(head.norm.weight))
        packer.linear(-1, OUTPUT_HEAD, LinearWeights(head.mapped_rows(tables.head)))
