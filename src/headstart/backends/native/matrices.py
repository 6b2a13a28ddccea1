"""Which matrices the native pass has of a model, by their numbers in its interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from headstart.models.files import WeightsIdentity
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.state_weights import DeltaWeights, MambaWeights
from headstart.models.stored import Matrix
from headstart.models.weights import (
    ChannelWeights,
    ExpertsWeights,
    FusionWeights,
    HyperWeights,
    LatentWeights,
    LayerInputsWeights,
    LayerWeights,
    MlpAndExpertsWeights,
    MlpWeights,
    StreamEndsWeights,
    TwoMixersWeights,
)

LINEARS = ("qkv", "output", "up", "down")
"""Of a layer, by their numbers in the interface."""
CROSS_LINEARS = ("cross_query", "cross_output")
"""Those of a layer that reads an encoder memory, too, with the numbers behind."""
LATENT_LINEARS = ("k_up", "value_up", "q_up", "latent_gate")
"""Those of a layer with latent attention likewise; it has no encoder memory."""
GATE_LINEARS = ("gate",)
"""That of a layer whose attention has a gate, likewise."""
INPUT_LINEARS = ("input_gate", "input_output")
"""Those of a layer that reads an input, likewise."""
SIDE_LINEARS = ("side_down", "side_up")
"""Those of a second path beside attention, behind an input's."""
MAMBA_LINEARS = ("selection", "step")
"""Those of Mamba between its first and its last, likewise."""
TWO_MIXERS_LINEARS = ("state_input", "state_output")
"""Those of the mixer beside attention, likewise."""
DELTA_LINEARS = ("rates", "gate_up", "step_up")
"""Those of a layer with the delta rule, likewise, of which the first is in float32, so that it has no form."""
BLOCK_LINEARS = ("attention_taps", "mlp_taps")
"""Those of a block head that convolves, likewise."""
MATRICES = 8
"""Places of a layer's matrices, some of which hold none."""
EXPERT_LINEARS = ("up", "down")
"""Of an expert, by number."""


class DecoderParts(Protocol):
    """What is packed of a model: ``DecoderWeights``, or the decoder of a model with an encoder."""

    @property
    def layers(self) -> Sequence[LayerWeights]: ...
    @property
    def head(self) -> LinearWeights: ...
    @property
    def final_norm(self) -> NormWeights | None: ...
    @property
    def embedding_norm(self) -> NormWeights | None: ...
    @property
    def positions(self) -> Tensor | None: ...
    @property
    def rope_factors(self) -> Tensor | None: ...
    @property
    def identity(self) -> WeightsIdentity | None: ...
    @property
    def table(self) -> Tensor | Matrix: ...
    @property
    def layer_inputs(self) -> LayerInputsWeights | None: ...
    @property
    def streams(self) -> StreamEndsWeights | None: ...
    @property
    def hyper_end(self) -> HyperWeights | None: ...
    @property
    def fusion(self) -> FusionWeights | None: ...
    @property
    def linears(self) -> Iterator[LinearWeights]:
        """Every layer's as ``linears_of`` has them, the output head last."""
        ...


def linears_of(layer: LayerWeights) -> tuple[LinearWeights | None, ...]:
    """A layer's ``MATRICES`` by number: the mixer's and a dense channel part's, or the shared expert's, then cross
    attention's, or latent attention's further ones, or the gate's, or the delta rule's rates, or its input's and a
    second path's. None: there is no such matrix."""
    linears = _linears_of(layer)
    return (*linears, *[None] * (MATRICES - len(linears)))


def _linears_of(layer: LayerWeights) -> tuple[LinearWeights | None, ...]:
    mixer = layer.mixer
    dense = None if layer.channel is None else dense_part(layer.channel)
    channel = (None, None) if dense is None else (dense.up, dense.down)
    if mixer is None:
        return (None, None, *channel)
    if isinstance(mixer, LatentWeights):
        return (mixer.down, mixer.output, *channel, mixer.key_up, mixer.value_up, mixer.q_up, mixer.gate)
    if isinstance(mixer, MambaWeights):
        return (mixer.input, mixer.output, *channel, mixer.selection, mixer.step)
    if isinstance(mixer, TwoMixersWeights):
        heads, states = mixer.attention, mixer.mamba2
        return (heads.qkv, heads.output, *channel, states.input, states.output)
    attention, output, *further = mixer.linears
    cross = () if layer.cross is None else (layer.cross.q, layer.cross.output)
    inputs = () if layer.input is None else (layer.input.gate, layer.input.output)
    if layer.side is not None:
        return (attention, output, *channel, *(inputs or (None, None)), layer.side.down, layer.side.up)
    return (attention, output, *channel, *cross, *further, *inputs)


def dense_part(channel: ChannelWeights) -> MlpWeights | None:
    """The MLP that all rows go through, the shared expert included; None: there is none."""
    if isinstance(channel, MlpAndExpertsWeights):
        return channel.mlp
    return channel.shared if isinstance(channel, ExpertsWeights) else channel


def experts_part(layer: LayerWeights) -> ExpertsWeights | None:
    """A layer's mixture of experts, by itself or beside an MLP."""
    channel = layer.channel.experts if isinstance(layer.channel, MlpAndExpertsWeights) else layer.channel
    return channel if isinstance(channel, ExpertsWeights) else None


def formed_of(layer: LayerWeights) -> tuple[LinearWeights | None, ...]:
    """As ``linears_of``, without those that are in float32."""
    linears = linears_of(layer)
    if not isinstance(layer.mixer, DeltaWeights):
        return linears
    return (*linears[: len(LINEARS)], None, *linears[len(LINEARS) + 1 :])


def experts_of(layer: LayerWeights) -> tuple[MlpWeights, ...]:
    """A layer's experts, the shared one left out."""
    experts = experts_part(layer)
    return () if experts is None else experts.experts


def matrices_of(weights: DecoderParts) -> list[LinearWeights | None]:
    """In the order of forms: every layer's as ``linears_of`` has them, the output head, the experts'
    [layer, expert, matrix] as ``EXPERT_LINEARS`` numbers them, what makes inputs of layers, what spreads and merges
    streams, and what fuses tokens and states, where rows read both. None: there is no such matrix, or it is in float32,
    as the delta rule's rates are. Routers are left out."""
    layers = weights.layers
    count = max(len(experts_of(layer)) for layer in layers)
    experts: list[LinearWeights | None] = []
    for layer in layers:
        own = [linear for expert in experts_of(layer) for linear in (expert.up, expert.down)]
        experts += own or [None] * (count * len(EXPERT_LINEARS))
    inputs = None if weights.layer_inputs is None else weights.layer_inputs.projection
    ends = () if weights.streams is None else (*weights.streams.spread, *weights.streams.merge)
    fusion = () if weights.fusion is None else (weights.fusion.projection,)
    return [*(each for layer in layers for each in formed_of(layer)), weights.head, *experts, inputs, *ends, *fusion]


def head_row(layers: Sequence[LayerWeights]) -> int:
    """The output head's place among them."""
    return len(layers) * MATRICES
