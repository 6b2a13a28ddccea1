"""One decoder for every family: layers configured by ``ModelConfig``, in plain tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.around import LayerInput, LayerInputs, Side, StreamEnds, Streams
from headstart.backends.torch.attention import Layout
from headstart.backends.torch.channels import Channel, Experts, MlpAndExperts, channel_of
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.mixers import MixerPass, mixer_of
from headstart.backends.torch.norms import Norm
from headstart.backends.torch.states import LayerStore, StateLayout
from headstart.backends.torch.window_ends import Windows
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.layers.hyper import merged, run_connected
from headstart.models.layers.layer import Operation, run_layer
from headstart.models.layers.positions import counted_sinusoids
from headstart.models.layers.rotary import Rotation
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.models.weights import DecoderWeights, HyperWeights, LayerWeights
from headstart.passes.batch import FINAL_TAP, stream_taps

_ROWS = 512
"""Whose logits are held at once where no more than their best tokens are wanted."""


class DecoderLayer:
    """A mixer and a channel part around the residual stream."""

    def __init__(
        self, config: ModelConfig, layer: LayerConfig, weights: LayerWeights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.layer = config, layer
        self.mixer = None if weights.mixer is None else mixer_of(config, layer, weights.mixer, dtype, device)
        self.channel = None if weights.channel is None else channel_of(config, layer, weights.channel, dtype, device)
        self.attention_norm, self.mlp_norm, self.attention_post_norm, self.mlp_post_norm = (
            None if norm is None else Norm.of(config, norm, device)
            for norm in (weights.attention_norm, weights.mlp_norm, weights.attention_post_norm, weights.mlp_post_norm)
        )
        self.side = None if weights.side is None else Side(config, weights.side, dtype, device)
        self.streams = None if weights.streams is None else Streams(config, weights.streams, dtype, device)
        self.input = None if weights.input is None else LayerInput(config, weights.input, dtype, device)
        self.scale = None if weights.scale is None else weights.scale.to(device, dtype)
        self.hyper = None if weights.hyper is None else [moved(each, device) for each in weights.hyper]

    @property
    def nbytes(self) -> int:
        parts = (self.mixer, self.channel, self.side, self.streams, self.input)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, hidden: Tensor, store: LayerStore, shared: MixerPass, inputs: Tensor | None = None) -> Tensor:
        """[row, hidden] -> [row, hidden], or [row, stream, hidden] both; what the mixer keeps of the rows is written to
        ``store``. ``inputs``: what all layers read beside it [row, count, size]."""
        mix = None if self.mixer is None else partial(self.mixer, store=store, shared=shared)
        given = None if inputs is None or self.layer.input is None else inputs[:, self.layer.input]
        if self.streams is not None:
            return self._run_streams(self.streams, hidden, mix, given)
        if self.hyper is not None:
            return self._run_hyper(self.hyper, hidden, mix, shared.tokens)
        hidden = run_layer(self.config, self, hidden, mix)
        if self.input is not None and given is not None:
            hidden = hidden + self.input(hidden, given)
        return hidden if self.scale is None else hidden * self.scale

    def _run_streams(self, streams: Streams, hidden: Tensor, mix: Operation | None, given: Tensor | None) -> Tensor:
        before = streams.predicted(hidden)
        after = streams.corrected(before, run_layer(self.config, self, before[:, 0], mix))
        if self.input is not None and given is not None:
            first = after[:, 0] if streams.scale is None else after[:, 0] * streams.scale
            after[:, 1:] += self.input(first, given)[:, None]
        return after

    def _run_hyper(
        self, hyper: Sequence[HyperWeights], hidden: Tensor, mix: Operation | None, tokens: Tensor | None
    ) -> Tensor:
        channel: Operation | None = self.channel
        if isinstance(self.channel, Experts) and self.layer.by_token:
            channel = partial(self.channel, tokens=tokens)
        norms, parts = (self.attention_norm, self.mlp_norm), (mix, channel)
        for weights, norm, part in zip(hyper, norms, parts, strict=True):
            hidden = run_connected(self.config, weights, hidden, norm, part)
        return hidden


def moved(weights: HyperWeights, device: torch.device) -> HyperWeights:
    """Where they are used."""
    return HyperWeights(*(each.to(device) for each in (weights.mix, weights.base, weights.scale)))


class DecoderOutput(NamedTuple):
    """What a decoder shows of some rows."""

    logits: Tensor
    """float32 [wanted, vocab]."""
    best: Tensor
    """int32 [best], as ``PassOutput.best`` has them."""
    states: dict[int, Tensor]
    """[row, hidden] by tap."""


class Decoder:
    """Embedding, layers, final norm and head. Runs under ``torch.inference_mode``."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = weights.embedding.to(device, dtype)
        self.positions = None if weights.positions is None else weights.positions.to(device, dtype)
        self.frequencies = [inverse_frequencies(rope, weights.rope_factors).to(device) for rope in config.ropes]
        self.layers = [
            DecoderLayer(config, layer, layer_weights, dtype, device)
            for layer, layer_weights in zip(config.layers, weights.layers, strict=True)
        ]
        self.final_norm = Norm.of(config, weights.final_norm, device)
        self.embedding_norm = None
        if weights.embedding_norm is not None:
            self.embedding_norm = Norm.of(config, weights.embedding_norm, device)
        self.streams = None if weights.streams is None else StreamEnds(weights.streams, dtype, device)
        self.hyper_end = None if weights.hyper_end is None else moved(weights.hyper_end, device)
        self.layer_inputs = None
        if weights.layer_inputs is not None:
            self.layer_inputs = LayerInputs(config, weights.layer_inputs, dtype, device)
        self.head = Linear(weights.head, dtype, device)

    @property
    def nbytes(self) -> int:
        """Size of tables and matrices in bytes (a tied head is held twice: as a table and packed for products)."""
        tables = self.embedding.nbytes + (0 if self.positions is None else self.positions.nbytes)
        parts = [*self.layers, *(part for part in (self.streams, self.layer_inputs) if part is not None)]
        return tables + sum(part.nbytes for part in parts) + self.head.nbytes

    def embed(self, tokens: Tensor, positions: Tensor, inputs: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[row] ids and positions -> [row, hidden], the first layer's input.

        ``inputs``: rows, and what they read in place of their token's embedding [given, hidden].
        """
        hidden = F.embedding(tokens, self.embedding)
        if self.config.embedding.scale != 1.0:
            hidden = hidden * self.config.embedding.scale
        if inputs is not None:
            hidden = hidden.index_copy(0, *inputs)
        if self.positions is not None:
            hidden = hidden + F.embedding(positions, self.positions)
        if self.config.embedding.positions == "sinusoid":
            rows = counted_sinusoids(positions, self.config.hidden_size)
            hidden = hidden + rows.to(hidden.dtype)
        return hidden if self.embedding_norm is None else self.embedding_norm(hidden)

    def inputs_of_layers(self, tokens: Tensor, embedded: Tensor) -> Tensor | None:
        """[row] ids and what ``embed`` gave for them -> what layers read beside it [row, count, size], if they do."""
        return None if self.layer_inputs is None else self.layer_inputs(tokens, embedded)

    def at(
        self,
        positions: Tensor,
        layout: Layout,
        states: StateLayout | None = None,
        tokens: Tensor | None = None,
        windows: Mapping[int, Windows] | None = None,
    ) -> MixerPass:
        """What the layers need to know of rows at ``positions`` [row]."""
        rotations = [
            Rotation(positions, frequencies, self.dtype, amplitude(rope))
            for rope, frequencies in zip(self.config.ropes, self.frequencies, strict=True)
        ]
        grown, growth = self.config.attention.query_growth, None
        if grown is not None:
            counted = positions if grown.everywhere else positions + 1
            growth = 1 + grown.weight * torch.log1p(counted.div(grown.trained, rounding_mode="floor"))
            growth = growth.to(self.dtype)[:, None, None]
        return MixerPass(layout, rotations, growth, states, tokens, windows or {}, positions)

    def run(
        self,
        hidden: Tensor,
        stores: Sequence[LayerStore],
        shared: MixerPass,
        taps: Collection[int],
        rows: Tensor,
        best_rows: Tensor,
        inputs: Tensor | None = None,
    ) -> DecoderOutput:
        """The layers that have a store, from the first one on, final norm and head.

        Args:
            hidden: [row, hidden] what the first layer reads.
            stores: [layer] what they keep.
            shared: of the rows.
            taps: as ``PassBatch.taps`` has them.
            rows: [wanted] those whose logits are computed.
            best_rows: [best] those whose best token is.
            inputs: as ``inputs_of_layers`` gives them.
        """
        depth = len(stores)
        hidden = hidden if self.streams is None else self.streams.spread(hidden)
        if self.config.residual.hyper is not None:
            hidden = hidden[:, None].repeat(1, self.config.residual.hyper.count, 1)
        states: dict[int, Tensor] = {}
        before: Channel | None = None
        for index, (layer, store) in enumerate(zip(self.layers[:depth], stores, strict=True)):
            if index in taps:
                states[index] = self._tapped(hidden)
            hidden = layer(hidden, store, shared, inputs)
            if isinstance(before, Experts) and before.held is not None:
                hidden, before.held = hidden + before.held, None
            before = layer.channel
        if depth in taps:
            states[depth] = self._tapped(hidden)
        if self.streams is not None:
            hidden = self.streams.merged(hidden)
        if self.config.residual.hyper is not None:
            for stream, tap in enumerate(stream_taps(self.config.residual.hyper.count)):
                if tap in taps:
                    states[tap] = hidden[:, stream]
            hidden = merged(self.config, self.hyper_end, hidden)
        if FINAL_TAP in taps:
            hidden = states[FINAL_TAP] = self.final_norm(hidden)
            wanted, best = (hidden.index_select(0, each) for each in (rows, best_rows))
        else:
            wanted, best = (self.final_norm(hidden.index_select(0, each)) for each in (rows, best_rows))
        return DecoderOutput(self.logits(wanted), self._best(best), states)

    def _tapped(self, hidden: Tensor) -> Tensor:
        """[row, hidden]; of several streams, the first, or their mean."""
        shown = hidden if self.streams is None else hidden[:, 0]
        shown = shown if self.config.residual.hyper is None else shown.mean(1)
        return shown * self.config.residual.tap_scale

    def _best(self, normed: Tensor) -> Tensor:
        """As ``PassOutput.best`` has them, of [row, hidden] after the final norm. Logits are of no use later."""
        found = [self.logits(rows).max(dim=1) for rows in torch.split(normed, _ROWS)]
        tokens = [torch.where(each.values.isfinite(), each.indices, -1) for each in found]
        return torch.cat(tokens).int()

    def logits(self, normed: Tensor, head: Linear | None = None) -> Tensor:
        """[row, hidden] after the final norm -> float32 [row, vocab], by another ``head`` where there is one."""
        logits = (head or self.head)(normed).float()
        cap = self.config.head.softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def called_experts(layers: Sequence[DecoderLayer]) -> float | None:
    """Distinct experts that the latest rows called, on average over those of the layers that have any; None: none
    has."""
    called = [layer.channel.called for layer in layers if isinstance(layer.channel, Experts | MlpAndExperts)]
    return fmean(called) if called else None
