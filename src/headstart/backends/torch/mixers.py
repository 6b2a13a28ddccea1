"""Mixers of a pass: how the rows of a layer see each other, and what is kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.attention import Layout, attend
from headstart.backends.torch.compressed import CompressedAttention
from headstart.backends.torch.few_bit_rows import write_rows
from headstart.backends.torch.indexer import Chooser
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.norms import HeadNorm, Norm
from headstart.backends.torch.states import LayerStore, StateLayout
from headstart.backends.torch.window_ends import Windows, ends_of
from headstart.models.compressed_weights import CompressedWeights
from headstart.models.config import LayerConfig, ModelConfig, Sight
from headstart.models.layers.convolution import run_convolution
from headstart.models.layers.delta import run_delta
from headstart.models.layers.latent import IndexRows, run_latent
from headstart.models.layers.layer import run_attention
from headstart.models.layers.mamba import run_mamba
from headstart.models.layers.mamba2 import run_mamba2
from headstart.models.layers.recurrence import LookBack, Recur
from headstart.models.layers.rotary import Rotation
from headstart.models.state_weights import ConvolutionWeights, DeltaWeights, Mamba2Weights, MambaWeights
from headstart.models.weights import AttentionWeights, LatentWeights, MixerWeights, TwoMixersWeights


@dataclass(frozen=True)
class MixerPass:
    """What the layers of one pass share."""

    layout: Layout
    rotations: Sequence[Rotation]
    """Of the rows, for each of the model's ropes."""
    growth: Tensor | None
    """[row, 1, 1] what queries are multiplied by, see ``QueryGrowth``."""
    states: StateLayout | None = None
    """None: no layer keeps a state."""
    tokens: Tensor | None = None
    """[row]"""
    windows: Mapping[int, Windows] = field(default_factory=dict)
    """By their ratio, those that end with rows of the pass; of each that a layer compresses."""
    positions: Tensor | None = None
    """[row]"""
    choice: list[Tensor | None] = field(default_factory=list)
    """[group] what the latest indexer lets rows see, as masks of ``attend``; empty: none has chosen yet."""


class Mixer(Protocol):
    """[row, hidden] -> [row, hidden]; what is kept of the rows is written to the layer's store."""

    @property
    def nbytes(self) -> int:
        """Of its matrices."""
        ...

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor: ...


def mixer_of(
    config: ModelConfig, layer: LayerConfig, weights: MixerWeights, dtype: torch.dtype, device: torch.device
) -> Mixer:
    """What computes a mixer of this kind."""
    if isinstance(weights, ConvolutionWeights):
        return ShortConvolution(weights, dtype, device)
    if isinstance(weights, MambaWeights):
        return Mamba(config, weights, dtype, device)
    if isinstance(weights, Mamba2Weights):
        return Mamba2(config, weights, dtype, device)
    if isinstance(weights, TwoMixersWeights):
        return TwoMixers(config, layer, weights, dtype, device)
    if isinstance(weights, DeltaWeights):
        return GatedDelta(config, weights, dtype, device)
    if isinstance(weights, CompressedWeights):
        return CompressedAttention(config, layer, weights, dtype, device)
    if isinstance(weights, LatentWeights):
        return LatentAttention(config, layer, weights, dtype, device)
    return SelfAttention(config, layer, weights, dtype, device)


def state_shapes(
    config: ModelConfig, layer: LayerConfig, dtype: torch.dtype
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of what a layer keeps in a slot of states; none: it keeps no state."""
    if layer.mixer == "convolution":
        assert config.convolution is not None
        return [((config.convolution.length - 1, config.hidden_size), dtype)]
    if layer.mixer == "mamba":
        assert config.mamba is not None
        before = (config.mamba.length - 1, config.mamba.inner)
        return [(before, dtype), ((config.mamba.inner, config.mamba.state_size), torch.float32)]
    if layer.mixer in ("mamba2", "attention+mamba2"):
        assert config.mamba2 is not None
        mamba = config.mamba2
        matrices = (mamba.heads, mamba.head_dim, mamba.state_size)
        return [((mamba.length - 1, mamba.convolved), dtype), (matrices, torch.float32)]
    if layer.mixer == "delta":
        assert config.delta is not None
        delta = config.delta
        matrices = (delta.value_heads, delta.key_dim, delta.value_dim)
        return [((delta.length - 1, delta.convolved), dtype), (matrices, torch.float32)]
    return []


def cache_row(config: ModelConfig, layer: LayerConfig) -> tuple[int, int, int]:
    """Shape of what one token keeps in a layer that attends: keys and values of heads [2, kv_head, head_dim]; of
    latent attention the state, which is key and value in one, and an indexer's key [1, 1, size]; of attention to
    compressed keys what ``CompressedConfig.kept`` says."""
    if config.compressed is not None:
        return 1, 1, config.compressed.kept(layer.compression, config.head_dim)[2]
    if config.latent is not None:
        indexer = config.latent.indexer_of(layer)
        return 1, 1, config.latent.kv_rank + config.latent.rope_dim + (0 if indexer is None else indexer.kept)
    return 2, config.kv_heads_of(layer), config.head_dim_of(layer)


def sights_of(config: ModelConfig, layers: Sequence[LayerConfig]) -> dict[Sight, int]:
    """How far those of some layers see that attend, and how many query heads share a key-value head in them."""
    sights = {layer.sight: config.heads_of(layer) // cache_row(config, layer)[1] for layer in layers if layer.attends}
    ratios = {layer.compression.ratio for layer in layers if layer.compression is not None}
    indexers = [config.latent.indexer_of(layer) for layer in layers if config.latent and layer.mixer == "latent"]
    ratios |= {indexer.pool for indexer in indexers if indexer is not None and indexer.pool > 1}
    return sights | {ends_of(ratio): 1 for ratio in ratios}


class SelfAttention:
    """Attention over keys and values of heads; the cache is [slot, 2, kv_head, head_dim], narrower values padded with
    zeros."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        weights: AttentionWeights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.layer = config, layer
        self.head_dim, self.keeps = config.head_dim_of(layer), layer.reads is None
        self.value_dim, self.heads = config.value_dim_of(layer), config.heads_of(layer)
        self.turning = self.heads + (config.kv_heads_of(layer) if self.keeps else 0)
        """Heads of queries and of the keys that it makes."""
        self.input, self.output = Linear(weights.qkv, dtype, device), Linear(weights.output, dtype, device)
        self.head_norm: HeadNorm | None = None
        normed = config.attention.qk_norm is not None and (
            config.attention.qk_norm.everywhere or layer.rope is not None
        )
        if normed and config.attention.qk_norm is not None and weights.q_norm is not None:
            self.head_norm = HeadNorm(config, layer, config.attention.qk_norm, weights.q_norm, weights.k_norm, device)
        self.sinks = None if weights.sinks is None else weights.sinks.to(device)
        self.gate = None if weights.gate is None else Linear(weights.gate, dtype, device)

    @property
    def nbytes(self) -> int:
        return self.input.nbytes + self.output.nbytes + (0 if self.gate is None else self.gate.nbytes)

    def qkv(self, x: Tensor) -> Tensor:
        """[row, hidden] -> [row, heads of queries, keys and values * head_dim]."""
        heads, keys = self.input(x), self.turning * self.head_dim
        if self.value_dim == self.head_dim:
            return heads
        values = heads[:, keys:].reshape(len(heads), -1, self.value_dim)
        values = F.pad(values, (0, self.head_dim - self.value_dim))
        return torch.cat((heads[:, :keys], values.flatten(1)), dim=-1)

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        attend = partial(self._attend, cache=store.pages, shared=shared)
        return run_attention(self, self.head_dim, x, attend, self.gate)

    def _attend(self, heads: Tensor, cache: Tensor, shared: MixerPass) -> Tensor:
        config, layout = self.config, shared.layout
        turned, values = heads[:, : self.turning], heads[:, self.turning :]
        if self.layer.values_are_keys:
            values = turned[:, self.heads :].clone()
        if config.attention.value_norm and self.keeps:
            values.copy_(F.rms_norm(values.float(), values.shape[-1:], None, config.norms.eps))
        norm = self.head_norm
        if norm is not None and not norm.norms.rotated:
            norm.apply_(turned)
        if config.attention.qkv_clip is not None:
            heads.clamp_(-config.attention.qkv_clip, config.attention.qkv_clip)
        if self.layer.rope is not None:
            shared.rotations[self.layer.rope].apply_(turned)
        if norm is not None and norm.norms.rotated:
            norm.apply_(turned)
        if self.keeps:
            kept = heads[:, self.heads :].view(len(heads), -1, cache.shape[2], self.head_dim)
            kept = torch.cat((kept, values[:, None]), dim=1) if self.layer.values_are_keys else kept
            write_rows(cache, layout.new_slots, kept)
        queries = heads[:, : self.heads]
        grown = config.attention.query_growth
        if shared.growth is not None and grown is not None and (grown.everywhere or self.layer.rope is None):
            queries = queries * shared.growth
        seen = attend(
            queries, cache, layout, self.layer.sight, config.score_scale, config.attention.softcap, sinks=self.sinks
        )
        if self.value_dim < self.head_dim:
            seen = seen.view(len(seen), -1, self.head_dim)[..., : self.value_dim].flatten(1)
        return seen if config.attention.value_scale == 1.0 else seen * config.attention.value_scale


class LatentAttention:
    """Latent attention; the cache is [slot, 1, 1, kv_rank + rope_dim], and an indexer's key behind."""

    def __init__(
        self, config: ModelConfig, layer: LayerConfig, weights: LatentWeights, dtype: torch.dtype, device: torch.device
    ) -> None:
        assert config.latent is not None
        self.config, self.layer, self.latent = config, layer, config.latent
        linear = partial(Linear, dtype=dtype, device=device)
        norm = partial(Norm, device=device, kind="rms", eps=config.latent.norm_eps)
        self.down, self.output = linear(weights.down), linear(weights.output)
        self.q_norm = None if weights.q_norm is None else norm(weights.q_norm)
        self.q_up = None if weights.q_up is None else linear(weights.q_up)
        self.kv_norm = norm(weights.kv_norm)
        self.gate = None if weights.gate is None else linear(weights.gate)
        self.sinks = None if weights.sinks is None else weights.sinks.to(device)
        self.key_up, self.value_up = (
            each.weight.to(device, dtype).view(config.num_heads, -1, each.matrix.shape[1])
            for each in (weights.key_up, weights.value_up)
        )
        self.indexer = config.latent.indexer_of(layer)
        self.chooser: Chooser | None = None
        if weights.index_norm is not None:
            self.chooser = Chooser(config, weights.index_norm, weights.index_places, device)

    @property
    def nbytes(self) -> int:
        linears = [each for each in (self.down, self.output, self.q_up, self.gate) if each is not None]
        return sum(linear.nbytes for linear in linears) + self.key_up.nbytes + self.value_up.nbytes

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        return run_latent(self.latent, self, x, partial(self._attend, cache=store.pages, shared=shared))

    def _attend(
        self, queries: Tensor, states: Tensor, index: IndexRows | None, cache: Tensor, shared: MixerPass
    ) -> Tensor:
        rank = self.latent.kv_rank
        rotation = None if self.layer.rope is None else shared.rotations[self.layer.rope]
        if rotation is not None:
            rotation.apply_(queries[..., rank:])
            rotation.apply_(states[:, None, rank:])
        if index is not None and self.chooser is not None:
            index = self.chooser.turned(index, rotation)
            states = torch.cat((states, self.chooser.kept(index)), dim=-1)
        write_rows(cache, shared.layout.new_slots, states[:, None, None])
        if index is not None and self.chooser is not None:
            assert shared.positions is not None
            self.chooser.close_pools(states, cache, shared.windows, shared.layout.new_slots)
            choose = partial(self.chooser.choose, index, cache, sight=self.layer.sight, positions=shared.positions)
            shared.choice[:] = [choose(group) for group in shared.layout.groups]
        if shared.growth is not None:
            queries = queries * shared.growth
        seen = attend(
            *(queries, cache, shared.layout, self.layer.sight, self.config.score_scale),
            masks=shared.choice or None,
            sinks=self.sinks,
            value_dim=rank,
        )
        return seen.view(len(queries), -1, rank)


class _StateMixer:
    """What mixers with a state share: a short convolution, and matrices before and behind it."""

    def __init__(
        self,
        weights: ConvolutionWeights | MambaWeights | Mamba2Weights | DeltaWeights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.input, self.output = Linear(weights.input, dtype, device), Linear(weights.output, dtype, device)
        self.kernel = weights.kernel.T.contiguous().to(device)
        bias = None if isinstance(weights, DeltaWeights) else weights.kernel_bias
        self.kernel_bias = None if bias is None else bias.to(device)

    @property
    def nbytes(self) -> int:
        return self.input.nbytes + self.output.nbytes


def _memory(store: LayerStore, shared: MixerPass) -> tuple[LookBack, Recur]:
    """How a convolution sees the rows before, and how a state goes on."""
    assert shared.states is not None
    rows, states = store.states
    return partial(shared.states.look_back, store=rows), partial(shared.states.recur, store=states)


class ShortConvolution(_StateMixer):
    """A short convolution between gates; its state is [slot, length - 1, hidden], the rows that it looks back at."""

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        assert shared.states is not None
        (rows,) = store.states
        return run_convolution(self, x, partial(shared.states.look_back, store=rows))


class Mamba(_StateMixer):
    """A selective state space of channels; its states are [slot, length - 1, inner], the rows that its convolution
    looks back at, and float32 [slot, inner, state_size]."""

    def __init__(self, config: ModelConfig, weights: MambaWeights, dtype: torch.dtype, device: torch.device) -> None:
        assert config.mamba is not None
        self.config = config.mamba
        super().__init__(weights, dtype, device)
        self.selection, self.step = Linear(weights.selection, dtype, device), Linear(weights.step, dtype, device)
        self.step_bias, self.skip = weights.step_bias.to(device), weights.skip.to(device)
        self.decay = -weights.log_decay.to(device).exp()
        self.norms = None if weights.norms is None else [norm.weight.to(device) for norm in weights.norms]

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.selection.nbytes + self.step.nbytes

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        return run_mamba(self.config, self, x, *_memory(store, shared))


class Mamba2(_StateMixer):
    """A selective state space; its states are [slot, length - 1, convolved], the rows that its convolution looks back
    at, and float32 [slot, head, head_dim, state_size]."""

    def __init__(self, config: ModelConfig, weights: Mamba2Weights, dtype: torch.dtype, device: torch.device) -> None:
        assert config.mamba2 is not None
        self.config = config.mamba2
        super().__init__(weights, dtype, device)
        self.step_bias, self.log_decay, self.skip = (
            each.to(device) for each in (weights.step_bias, weights.log_decay, weights.skip)
        )
        self.norm = None if weights.norm is None else weights.norm.weight.to(device)

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        return run_mamba2(self.config, self, x, *_memory(store, shared))


class TwoMixers:
    """Attention and a selective state space side by side, added up."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        weights: TwoMixersWeights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.attention = SelfAttention(config, layer, weights.attention, dtype, device)
        self.mamba2 = Mamba2(config, weights.mamba2, dtype, device)

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + self.mamba2.nbytes

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        return self.attention(x, store, shared) + self.mamba2(x, store, shared)


class GatedDelta(_StateMixer):
    """The gated delta rule; its states are [slot, length - 1, convolved], the rows that its convolution looks back at,
    and float32 [slot, value_head, key_dim, value_dim]."""

    def __init__(self, config: ModelConfig, weights: DeltaWeights, dtype: torch.dtype, device: torch.device) -> None:
        assert config.delta is not None
        self.config = config.delta
        super().__init__(weights, dtype, device)
        self.rates = Linear(weights.rates, dtype, device)
        self.ups = [Linear(each, dtype, device) for each in weights.ups]
        self.step_bias, self.log_decay, self.norm = (
            each.to(device) for each in (weights.step_bias, weights.log_decay, weights.norm.weight)
        )

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(linear.nbytes for linear in (self.rates, *self.ups))

    def __call__(self, x: Tensor, store: LayerStore, shared: MixerPass) -> Tensor:
        return run_delta(self.config, self, x, *_memory(store, shared))
