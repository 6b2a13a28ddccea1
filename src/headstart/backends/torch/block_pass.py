"""A block head: one pass that guesses all tokens of a block, over the states that the target has shown so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.block_factors import BlockFactors
from headstart.backends.torch.draft_cache import TorchDraftCache, attend
from headstart.backends.torch.parallel_pass import Kit, LinearLayer
from headstart.heads.block import BlockHead, BlockLayer
from headstart.heads.head_pass import DraftCache, DraftRows
from headstart.heads.modules import side_by_side
from headstart.heads.tables import TargetTables
from headstart.heads.text_vocabulary import TextTokens, TextVocabulary
from headstart.layers.layer import Operation, run_head_layers
from headstart.layers.rotary import Rotation
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.models.weights import LinearWeights
from headstart.passes import IntArray


@dataclass(frozen=True)
class _LayerPass:
    """The fused matrices of one layer, and its norms (``HeadLayerParts``)."""

    qkv: LinearLayer
    output: LinearLayer
    up: LinearLayer
    down: LinearLayer
    input_norm: Operation
    mlp_norm: Operation
    head_norms: Tensor
    """float32 [head + kv_head, head_dim] the weights of the norms of queries and keys."""

    @property
    def nbytes(self) -> int:
        return self.qkv.nbytes + self.output.nbytes + self.up.nbytes + self.down.nbytes


class BlockPass:
    """Runs a block head with packed matrices (``BlockHeadPass``).

    Args:
        head: weights, copied.
        tables: the target's; used where the head has none of its own.
        kit: what it is computed with.
    """

    @torch.inference_mode()
    def __init__(self, head: BlockHead, tables: TargetTables, kit: Kit) -> None:
        self.config = config = head.config
        self._kit = kit
        self.slots = config.slots
        self.target_ids = head.target_ids.cpu()
        self._factors = BlockFactors(head, kit)
        self.chained, self.confident = self._factors.chained, self._factors.confident
        self._fuse = kit.linear(LinearWeights(head.fc.weight))
        self._context_norm = partial(_norm, head.hidden_norm.weight.detach().to(kit.device), config.norm_eps)
        self._norm = partial(_norm, head.norm.weight.detach().to(kit.device), config.norm_eps)
        projections = [(each.self_attn.k_proj, each.self_attn.v_proj) for each in head.layers]
        self._context_heads = kit.linear(side_by_side(*(layer for pair in projections for layer in pair)))
        self._layers = [self._packed(layer) for layer in head.layers]
        self._context_head_norms = torch.cat([layer.head_norms[config.num_heads :] for layer in self._layers])
        self._head = kit.linear(LinearWeights(head.mapped_rows(tables.head)))
        embedding = tables.embedding if head.embedding is None else head.embedding
        self._embedding = embedding.detach().to(kit.device, torch.bfloat16)
        self._frequencies, self._scale = inverse_frequencies(config.rope).to(kit.device), amplitude(config.rope)
        self._causal = None
        if config.causal:
            self._causal = torch.ones(config.block_size, config.block_size, dtype=torch.bool, device=kit.device).tril()

    @property
    def nbytes(self) -> int:
        """Of its matrices and its copy of the embedding."""
        ends = (self._fuse, self._context_heads, self._head, self._embedding)
        return self._factors.nbytes + sum(layer.nbytes for layer in self._layers) + sum(part.nbytes for part in ends)

    @property
    def row_bytes(self) -> int:
        """See ``HeadPass``."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self._kit.dtype.itemsize

    def new_cache(self) -> TorchDraftCache:
        config = self.config
        shape = (config.num_layers, config.num_kv_heads, config.head_dim)
        return TorchDraftCache(*shape, self._kit.dtype, self._kit.device)

    @torch.inference_mode()
    def read(self, features: Tensor, groups: Sequence[DraftRows]) -> None:
        """See ``BlockHeadPass``."""
        config, kit = self.config, self._kit
        rotation = self._rotation([position for group in groups for position in group.positions])
        context = self._context_norm(self._fuse(features.to(kit.device, kit.dtype)))
        heads = self._context_heads(context).view(-1, config.num_layers, 2, config.num_kv_heads, config.head_dim)
        keys = self._normed_heads(heads[:, :, 0].flatten(1, 2), self._context_head_norms, rotation)
        keys = keys.view(len(keys), config.num_layers, config.num_kv_heads, config.head_dim)
        first = 0
        for group in groups:
            assert isinstance(group.cache, TorchDraftCache)
            rows = slice(first, first + group.count)
            first += group.count
            group.cache.write_layers(keys[rows], heads[rows, :, 1])
        for group in groups:
            group.cache.rows += group.count

    @torch.inference_mode()
    def block(self, roots: IntArray, caches: Sequence[DraftCache], slots: int) -> tuple[Tensor, Tensor]:
        """See ``BlockHeadPass``."""
        config, kit, size = self.config, self._kit, self.config.block_size
        tokens = torch.full((len(caches), size), config.mask_token_id)
        tokens[:, 0] = torch.from_numpy(roots)
        embeddings = F.embedding(tokens.flatten().to(kit.device), self._embedding).to(kit.dtype)
        rotation = self._rotation([cache.rows + row for cache in caches for row in range(size)])
        turning = config.num_heads + config.num_kv_heads

        def attend_heads(index: int, heads: Tensor) -> Tensor:
            turned = self._normed_heads(heads[:, :turning], self._layers[index].head_norms, rotation)
            queries, keys = turned[:, : config.num_heads], turned[:, config.num_heads :]
            return self._attend(index, queries, keys, heads[:, turning:], caches)

        x = self._layers[0].input_norm(embeddings)
        output = run_head_layers(self._layers, config.head_dim, x, embeddings, attend_heads)
        speaking = output.view(len(caches), size, -1)[:, config.speaking][:, :slots]
        states = self._norm(speaking.reshape(-1, config.hidden_size))
        logits = self._head(states).float()
        return states.view(len(caches), slots, -1), logits.view(len(caches), slots, -1)

    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self._factors.confidence(states, tokens)

    def following(self, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self._factors.following(tokens)

    def growth(self, width: int, ids: IntArray, ends: bool) -> None:
        """Depth by depth."""

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return self._kit.best(logits, ranks)

    def text_tokens(self, vocabulary: TextVocabulary, most: int) -> TextTokens:
        """See ``HeadPass``."""
        return TextTokens(vocabulary, most)

    def _packed(self, layer: BlockLayer) -> _LayerPass:
        config, device = self.config, self._kit.device
        before, between = (
            partial(_norm, norm.weight.detach().to(device), config.norm_eps)
            for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        counts = ((layer.self_attn.q_norm, config.num_heads), (layer.self_attn.k_norm, config.num_kv_heads))
        of_heads = torch.cat([norm.weight.detach().expand(count, -1) for norm, count in counts]).to(device)
        qkv, output, up, down = map(self._kit.linear, layer.fused())
        return _LayerPass(qkv, output, up, down, before, between, of_heads)

    def _rotation(self, positions: Sequence[int]) -> Rotation:
        return Rotation(torch.tensor(positions, device=self._kit.device), self._frequencies, torch.float32, self._scale)

    def _normed_heads(self, heads: Tensor, weights: Tensor, rotation: Rotation) -> Tensor:
        """Queries or keys [row, head, head_dim], each by its own norm, at their positions."""
        normed = _normalised(heads.float(), self.config.norm_eps).mul_(weights)
        rotation.apply_(normed)
        return normed.to(self._kit.dtype)

    def _attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, caches: Sequence[DraftCache]
    ) -> Tensor:
        """The rows of a block see all true rows of their sequence, and each other."""
        size, outputs = self.config.block_size, []
        for place, cache in enumerate(caches):
            assert isinstance(cache, TorchDraftCache)
            rows = slice(place * size, (place + 1) * size)
            # They stand behind the true rows, which the next block's overwrite.
            all_keys, all_values = cache.write(layer, keys[rows], values[rows])
            mask = None if self._causal is None else F.pad(self._causal, (cache.rows, 0), value=True)
            outputs.append(attend(queries[rows], all_keys, all_values, mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _norm(weight: Tensor, eps: float, x: Tensor) -> Tensor:
    return _normalised(x.float(), eps).mul_(weight).to(x.dtype)


def _normalised(x: Tensor, eps: float) -> Tensor:
    """Over the last axis; in fewer operations than ``F.rms_norm``, which for a few rows is what counts."""
    return x * x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
