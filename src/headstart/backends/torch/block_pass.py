"""A block head: one pass that guesses all tokens of a block, over the states that the target has shown so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.attention import Layout, attend
from headstart.backends.torch.block_factors import BlockFactors
from headstart.backends.torch.draft_pool import FEWEST_BLOCKS, RECORDED_BLOCKS, DraftLayout, DraftPool, PooledDraftCache
from headstart.backends.torch.head_kit import Kit, LinearLayer
from headstart.backends.torch.recorded_blocks import RecordedBlocks
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.drafting.heads.modules import side_by_side
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import TextRowSource, TextTokens
from headstart.drafting.methods.dflash.head import BlockHead, BlockLayer
from headstart.drafting.methods.dflash.head_parts import candidates, convolved_around
from headstart.models.config import Sight
from headstart.models.layers.layer import Around, Operation, run_head_layers
from headstart.models.layers.rotary import Rotation
from headstart.models.linear_weights import LinearWeights
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.passes.batch import IntArray

View = tuple[Sight, bool]
"""How far the rows of a block see in a layer, and whether none of them sees those behind it."""


@dataclass(frozen=True)
class _LayerPass:
    """The fused matrices of one layer, and its norms (``HeadLayerParts``)."""

    qkv: LinearLayer
    output: LinearLayer
    up: LinearLayer
    down: LinearLayer
    input_norm: Operation
    mlp_norm: Operation
    view: View
    head_norms: Tensor
    """float32 [head + kv_head, head_dim] the weights of the norms of queries and keys."""
    sinks: Tensor | None
    """float32 [head] scores that no key has."""

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
        self.dtype, self.device = kit.dtype, kit.device
        self.slots = config.slots
        self.target_ids = head.target_ids.cpu()
        self._factors = BlockFactors(head, kit)
        self.chained, self.confident = self._factors.chained, self._factors.confident
        self._fuse = kit.linear(LinearWeights(head.fc.weight))
        self._context_norm = partial(_norm, head.hidden_norm.weight.detach().to(kit.device), config.norm_eps)
        self._norm = partial(_norm, head.norm.weight.detach().to(kit.device), config.norm_eps)
        projections = [(each.self_attn.k_proj, each.self_attn.v_proj) for each in head.layers]
        self._context_heads = kit.linear(side_by_side(*(layer for pair in projections for layer in pair)))
        self._layers = [self._packed(*each) for each in enumerate(head.layers)]
        self._around = [self._convolutions(layer) for layer in head.layers] if config.conv_taps else None
        self.views = sorted({layer.view for layer in self._layers}, key=str)
        self._context_head_norms = torch.cat([layer.head_norms[config.num_heads :] for layer in self._layers])
        self._head = kit.linear(LinearWeights(head.mapped_rows(tables.head)))
        embedding = tables.embedding if head.embedding is None else head.embedding
        self._embedding = embedding.detach().to(kit.device, torch.bfloat16)
        self._frequencies, self._scale = inverse_frequencies(config.rope).to(kit.device), amplitude(config.rope)
        row = (config.num_layers, 2, config.num_kv_heads, config.head_dim)
        blocks = FEWEST_BLOCKS if kit.recorder is None else RECORDED_BLOCKS
        self._pool = DraftPool([row], kit.dtype, kit.device, blocks)
        self._recorded = None if kit.recorder is None else RecordedBlocks(self, self._pool, kit.recorder)

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

    def new_cache(self) -> PooledDraftCache:
        return PooledDraftCache(self._pool, [0])

    @torch.inference_mode()
    def read(self, features: Tensor, groups: Sequence[DraftRows]) -> None:
        """See ``BlockHeadPass``."""
        slots = []
        for group in groups:
            end = group.cache.rows + group.count
            slots.append(_reserved(group.cache, end).slots(group.cache.rows, end))
        positions = np.array([position for group in groups for position in group.positions], dtype=np.int64)
        if self._recorded is None or not self._recorded.read(features, positions, np.concatenate(slots)):
            device = self._kit.device
            places, kept = (torch.from_numpy(each).to(device) for each in (positions, np.concatenate(slots)))
            self.keep(features.to(device, self._kit.dtype), places, kept)
        for group in groups:
            group.cache.rows += group.count

    @torch.inference_mode()
    def block(self, roots: IntArray, caches: Sequence[DraftCache], slots: int) -> tuple[Tensor, Tensor]:
        """See ``BlockHeadPass``."""
        config, size, device = self.config, self.config.block_size, self._kit.device
        # The block stands behind the true rows, which the next ones overwrite.
        pooled = [_reserved(cache, cache.rows + size) for cache in caches]
        said = None if self._recorded is None else self._recorded.block(roots, pooled, slots)
        if said is None:
            tokens = np.full((len(caches), size), config.mask_token_id, dtype=np.int64)
            tokens[:, 0] = roots
            positions = np.array([cache.first + cache.rows for cache in caches])[:, None] + np.arange(size)
            groups, counts = [DraftRows(cache, size) for cache in caches], [size] * len(caches)
            heads = config.num_heads // config.num_kv_heads
            layouts: dict[View, Layout] = {
                (sight, looks_back): DraftLayout(
                    groups, counts, 0, sight, heads, self._kit.dtype, device, mutual=not looks_back
                )
                for sight, looks_back in self.views
            }
            read, places = (torch.from_numpy(each).to(device) for each in (tokens, positions))
            said = self.say(read, places, layouts, slots)
        return said

    @torch.inference_mode()
    def keep(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Keys and values of states [row, taps * target hidden] at ``positions`` [row] go to ``slots`` [row]."""
        config = self.config
        heads = self._context_heads(self._context_norm(self._fuse(features)))
        heads = heads.view(-1, config.num_layers, 2, config.num_kv_heads, config.head_dim)
        keys = self._normed_heads(heads[:, :, 0].flatten(1, 2), self._context_head_norms, self._rotation(positions))
        keys = keys.view(len(keys), config.num_layers, config.num_kv_heads, config.head_dim)
        self._pool.tensors[0].index_copy_(0, slots, torch.stack((keys, heads[:, :, 1]), dim=2))

    @torch.inference_mode()
    def say(
        self, tokens: Tensor, positions: Tensor, layouts: Mapping[View, Layout], slots: int
    ) -> tuple[Tensor, Tensor]:
        """What blocks say whose rows read ``tokens`` at ``positions``, int64 [sequence, row], and see what ``layouts``
        has for each of ``views``; results as of ``BlockHeadPass.block``."""
        config = self.config
        embeddings = F.embedding(tokens.flatten(), self._embedding).to(self._kit.dtype)
        rotation = self._rotation(positions.flatten())
        turning = config.num_heads + config.num_kv_heads

        def attend_heads(index: int, heads: Tensor) -> Tensor:
            turned = self._normed_heads(heads[:, :turning], self._layers[index].head_norms, rotation)
            queries, keys = turned[:, : config.num_heads], turned[:, config.num_heads :]
            cache = self._pool.tensors[0][:, index]
            view, sinks = self._layers[index].view, self._layers[index].sinks
            layout = layouts[view]
            cache.index_copy_(0, layout.new_slots, torch.stack((keys, heads[:, turning:]), dim=1))
            return attend(queries, cache, layout, view[0], config.head_dim**-0.5, sinks=sinks)

        x = self._layers[0].input_norm(embeddings)
        output = run_head_layers(self._layers, config.head_dim, x, embeddings, attend_heads, self._around)
        speaking = output.view(*tokens.shape, -1)[:, config.speaking][:, :slots]
        states = self._norm(speaking.reshape(-1, config.hidden_size))
        logits = self._head(states).float()
        if config.selector_rank:
            logits = candidates(logits, config.selector_top)
        return states.view(len(tokens), slots, -1), logits.view(len(tokens), slots, -1)

    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self._factors.confidence(states, tokens)

    def following(self, tokens: Tensor, states: Tensor) -> Tensor:
        """See ``BlockHeadPass``."""
        return self._factors.following(tokens, states)

    def growth(self, width: int, ids: IntArray, ends: bool) -> None:
        """Depth by depth."""

    def best(self, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
        """See ``best_tokens``."""
        return self._kit.best(logits, ranks)

    def text_tokens(self, vocabulary: TextRowSource, most: int) -> TextTokens:
        """See ``HeadPass``."""
        return TextTokens(vocabulary, most)

    def _packed(self, index: int, layer: BlockLayer) -> _LayerPass:
        config, device = self.config, self._kit.device
        before, between = (
            partial(_norm, norm.weight.detach().to(device), config.norm_eps)
            for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        counts = ((layer.self_attn.q_norm, config.num_heads), (layer.self_attn.k_norm, config.num_kv_heads))
        of_heads = torch.cat([norm.weight.detach().expand(count, -1) for norm, count in counts]).to(device)
        qkv, output, up, down = map(self._kit.linear, layer.fused())
        view = (config.sight(index), config.looks_back(index))
        sinks = layer.self_attn.attention_sink_bias.detach().to(device, torch.float32) if config.sinks else None
        return _LayerPass(qkv, output, up, down, before, between, view, of_heads, sinks)

    def _convolutions(self, layer: BlockLayer) -> tuple[Around, Around]:
        """What stands around a layer's attention and its MLP."""
        linear, device = self._kit.linear, self._kit.device
        of_attention, of_mlp = (
            partial(
                convolved_around,
                projection=linear(LinearWeights(conv.kernel_projection.weight)),
                kernels=conv.base_kernel.detach().to(device),
                groups=conv.groups,
                block_size=self.config.block_size,
            )
            for conv in (layer.attention_conv, layer.mlp_conv)
        )
        return of_attention, of_mlp

    def _rotation(self, positions: Tensor) -> Rotation:
        return Rotation(positions, self._frequencies, torch.float32, self._scale)

    def _normed_heads(self, heads: Tensor, weights: Tensor, rotation: Rotation) -> Tensor:
        """Queries or keys [row, head, head_dim], each by its own norm, at their positions."""
        normed = _normalised(heads.float(), self.config.norm_eps).mul_(weights)
        rotation.apply_(normed)
        return normed.to(self._kit.dtype)


def _reserved(cache: DraftCache, rows: int) -> PooledDraftCache:
    """A cache with room for so many rows."""
    assert isinstance(cache, PooledDraftCache)
    cache.reserve(rows)
    return cache


def _norm(weight: Tensor, eps: float, x: Tensor) -> Tensor:
    return _normalised(x.float(), eps).mul_(weight).to(x.dtype)


def _normalised(x: Tensor, eps: float) -> Tensor:
    """Over the last axis; in fewer operations than ``F.rms_norm``, which for a few rows is what counts."""
    return x * x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
