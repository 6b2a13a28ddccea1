"""Encoder-decoder models in PyTorch: an encoder that fills memories, a decoder whose rows read them.

A memory is the keys and values that every layer of the decoder makes of the encoder's states, once. They lie in pages
of the same storage as the keys and values of tokens, in the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headstart.backends.torch.attention import MEMORY, AttentionLayout, attend
from headstart.backends.torch.backend import NAMES, TorchBackend, TorchStorage
from headstart.backends.torch.device import avoid_attention_plans, finish
from headstart.backends.torch.encoder import Embedder, Encoder, StackMatrices, optional_norm
from headstart.backends.torch.few_bit_rows import write_rows
from headstart.backends.torch.kit import TorchKit
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.norms import Norm
from headstart.common.enumerations import CacheType
from headstart.models.config import EVERYTHING, ModelConfig
from headstart.models.encoder_decoder_weights import EncoderDecoderWeights
from headstart.models.layers.cross_attention import StackLayer
from headstart.models.layers.positions import distance_buckets
from headstart.models.weights import CrossWeights
from headstart.passes.backend import BackendKit
from headstart.passes.batch import FINAL_TAP, EncoderInput, IntArray, KVStorage, PassBatch, PassOutput, TapStates

Masks = Callable[[int], Sequence[Tensor] | None]
"""Layer -> [group] masks of its attention with biases in them; None: those of the layout."""


class CrossMatrices:
    """The matrices and the norm of one layer's cross attention."""

    def __init__(self, config: ModelConfig, weights: CrossWeights, dtype: torch.dtype, device: torch.device) -> None:
        linear = partial(Linear, dtype=dtype, device=device)
        self.norm = Norm.of(config, weights.norm, device)
        self.q, self.kv, self.output = linear(weights.q), linear(weights.kv), linear(weights.output)

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in (self.q, self.kv, self.output))


class EncoderDecoderBackend:
    """A ``Backend`` with an encoder (``passes.backend.EncoderBackend``), of plain torch operations in float32 or
    bfloat16; as ``TorchBackend`` in everything else."""

    exact_rows = False
    finds_best = False
    opens_layers = True
    cache_types = TorchBackend.cache_types

    def __init__(
        self,
        config: ModelConfig,
        weights: EncoderDecoderWeights,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kit: BackendKit | None = None,
    ) -> None:
        """``kit``: what runs beside the passes; None: PyTorch, on the same device."""
        assert config.encoder is not None
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        avoid_attention_plans(self.device)
        self.kit: BackendKit = kit or TorchKit(self.device)
        self.name = NAMES.get(dtype, f"torch-{dtype}".replace("torch.", ""))
        self.layer = StackLayer(config.head_dim, config.mlp.activation, config.mlp.gated, config.encoder.normed_before)
        with torch.inference_mode():
            self._embedding = weights.embedding.to(self.device, dtype)
            own = weights.encoder.embedding
            read = self._embedding if own is None else own.to(self.device, dtype)
            self.encoder = Encoder(config, weights.encoder, read, dtype, self.device)
            decoder = weights.decoder
            self.embedder = Embedder(config, decoder, self._embedding, config.max_positions, dtype, self.device)
            linear = partial(Linear, dtype=dtype, device=self.device)
            self.layers = [StackMatrices(config, layer, linear, self.device) for layer in decoder.layers]
            self.cross = [CrossMatrices(config, cross, dtype, self.device) for cross in decoder.cross]
            self._final_norm = optional_norm(config, decoder.final_norm, self.device)
            self._head = Linear(weights.head, dtype, self.device)
            self.relative = [table.T.to(self.device, dtype) for table in decoder.relative]

    @property
    def nbytes(self) -> int:
        matrices = sum(layer.nbytes + cross.nbytes for layer, cross in zip(self.layers, self.cross, strict=True))
        own = self.encoder.embedder.nbytes if self.encoder.config.vocab_size is not None else 0
        return self._embedding.nbytes + own + self.encoder.nbytes + matrices + self._head.nbytes

    def allocate_cache(
        self, num_blocks: int, block_size: int, num_states: int = 0, cache_type: CacheType = CacheType.AUTO
    ) -> KVStorage:
        return TorchStorage(self.config, num_blocks, block_size, self.dtype, self.device, cache_type=cache_type)

    @torch.inference_mode()
    def encode(self, source: EncoderInput, storage: KVStorage, blocks: Sequence[int]) -> None:
        """See ``EncoderBackend``."""
        own = self._own(storage)
        states = self.encoder.read(source)
        within = np.arange(own.block_size)
        slots = (np.asarray(blocks, dtype=np.int64)[:, None] * own.block_size + within).ravel()[: len(states)]
        places = torch.from_numpy(slots).to(self.device)
        shape = (len(states), 2, self.config.num_kv_heads, self.config.head_dim)
        for index, cross in enumerate(self.cross):
            write_rows(own.layers[index].pages, places, cross.kv(states).view(shape))
        finish(self.device)

    @torch.inference_mode()
    def forward(self, batch: PassBatch, storage: KVStorage) -> PassOutput:
        """Run one pass of the decoder.

        Raises:
            TypeError: the storage is another backend's.
            ValueError: a tap lies beyond the layers that run.
        """
        kept, config = self._own(storage).layers, self.config
        depth = config.num_layers if batch.num_layers is None else batch.num_layers
        beyond = [tap for tap in batch.taps if tap != FINAL_TAP and not 0 <= tap <= depth]
        if not 0 < depth <= config.num_layers or beyond:
            raise ValueError(f"taps {list(batch.taps)} and num_layers {depth} do not fit {config.num_layers} layers")
        relative = bool(self.relative)
        layout = AttentionLayout(
            batch, storage.block_size, {EVERYTHING: 1}, self.dtype, self.device, with_distances=relative
        )
        masks = self._masks(layout)
        inputs = None
        if batch.inputs is not None:
            inputs = self._tensor(batch.inputs.rows).long(), batch.inputs.values.to(self.device, self.dtype)
        hidden = self.embedder.tokens(self._tensor(batch.tokens), self._tensor(batch.positions), inputs)
        taps: dict[int, Tensor] = {}
        for index, (parts, cross) in enumerate(zip(self.layers[:depth], self.cross[:depth], strict=True)):
            if index in batch.taps:
                taps[index] = hidden
            cache = kept[index].pages
            hidden = self.layer.attention(
                parts, hidden, partial(self._attend, cache=cache, layout=layout, masks=masks(index))
            )
            hidden = self.layer.cross_attention(
                cross,
                hidden,
                partial(attend, cache=cache, layout=layout, sight=MEMORY, scale=config.score_scale, softcap=None),
            )
            hidden = self.layer.channel(parts, hidden)
        if depth in batch.taps:
            taps[depth] = hidden
        if FINAL_TAP in batch.taps:
            taps[FINAL_TAP] = self._normed(hidden)
        normed = self._normed(hidden.index_select(0, self._tensor(batch.logit_rows)))
        logits = self._head(normed).float()
        finish(self.device)
        return PassOutput(logits, TapStates.of({tap: taps[tap] for tap in batch.taps}))

    def _attend(self, heads: Tensor, cache: Tensor, layout: AttentionLayout, masks: Sequence[Tensor] | None) -> Tensor:
        config = self.config
        keys_values = heads[:, config.num_heads :].reshape(len(heads), 2, -1, config.head_dim)
        write_rows(cache, layout.new_slots, keys_values)
        return attend(heads[:, : config.num_heads], cache, layout, EVERYTHING, config.score_scale, None, masks)

    def _masks(self, layout: AttentionLayout) -> Masks:
        if not self.relative:
            return lambda layer: None
        made: dict[int, list[Tensor]] = {}

        def of_layer(layer: int) -> list[Tensor]:
            table = min(layer, len(self.relative) - 1)
            if table not in made:
                made[table] = self._biases(self.relative[table], layout)
            return made[table]

        return of_layer

    def _biases(self, table: Tensor, layout: AttentionLayout) -> list[Tensor]:
        """[group] biases [sequence, head, row, key] by distance, and -inf where a row does not see a key.

        ``table``: [head, bucket].
        """
        encoder = self.config.encoder
        assert encoder is not None
        assert encoder.relative is not None
        masks = []
        for group in layout.groups:
            view = group.views[EVERYTHING]
            assert view.distances is not None
            bias = table[:, distance_buckets(view.distances, encoder.relative, both_sides=False)].transpose(0, 1)
            masks.append(bias if view.mask is None else bias + view.mask)
        return masks

    def _normed(self, hidden: Tensor) -> Tensor:
        return hidden if self._final_norm is None else self._final_norm(hidden)

    def _own(self, storage: KVStorage) -> TorchStorage:
        if not isinstance(storage, TorchStorage):
            raise TypeError(f"storage is a {type(storage).__name__}; allocate it with this backend")
        return storage

    def _tensor(self, values: IntArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
