"""A decoder's weights in one canonical form, whatever file they came from.

Both backends build from this: projections are fused (q, k, v in one matrix; gate and up in one), rotary halves
are in rotate-half order, norm weights are as stored in Hugging Face checkpoints (``ModelConfig.norm_offset`` is
not yet added). Matrices are [out, in] in the requested precision; norms and biases, being small, stay float32.
Matrices of a file are read when somebody asks for them: they are seldom all wanted at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headstart.models.compressed_weights import CompressedWeights
from headstart.models.files import WeightsIdentity
from headstart.models.linear_weights import Held, LinearWeights, NormWeights
from headstart.models.state_weights import ConvolutionWeights, DeltaWeights, Mamba2Weights, MambaWeights
from headstart.models.stored import Matrix, StoredTensor


class TensorSource(Protocol):
    """The tensors of a checkpoint by the names its file gives them, read one at a time.

    Shapes are in torch order (a matrix is [out, in]), for GGUF files too.
    """

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, from the file's header alone."""
        ...

    def read(self, name: str, index: int | None = None) -> Tensor:
        """One tensor in its stored dtype (quantised blocks: dequantised to float32), or the one numbered ``index`` of
        those that are stacked in it."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """One tensor as the file holds it; nothing is read."""
        ...

    def stored_bits(self, name: str) -> float:
        """What a weight of this tensor takes in the file, with its share of the units of quantised blocks."""
        ...


@dataclass(frozen=True)
class AttentionWeights:
    """Attention over keys and values of heads; norms that the family does not have are None."""

    qkv: LinearWeights
    """Rows: num_heads * head_dim of q, then num_kv_heads * head_dim of k, then num_kv_heads * value_dim of v (none,
    where values are keys; of q alone, where the layer reads another one's keys)."""
    output: LinearWeights
    """[hidden, num_heads * value_dim]"""
    q_norm: NormWeights | None = None
    """[head_dim], [num_heads, head_dim] or [num_heads * head_dim], see ``HeadNorms``."""
    k_norm: NormWeights | None = None
    sinks: Tensor | None = None
    """[num_heads] float32."""
    gate: LinearWeights | None = None
    """[num_heads * value_dim, hidden], or [num_heads, hidden]"""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.qkv, self.output)
        if self.gate is not None:
            yield self.gate


@dataclass(frozen=True)
class LatentWeights:
    """Latent attention, see ``LatentConfig``."""

    down: LinearWeights
    """Rows: q_rank of the queries' state (without one: num_heads * head_dim of q), kv_rank of the keys' and values',
    rope_dim of the key that all heads share; dim of an indexer's key, where keys are mixtures as many weights of it,
    heads of what its heads count for."""
    q_norm: NormWeights | None
    """[q_rank]"""
    q_up: LinearWeights | None
    """[num_heads * head_dim, q_rank]; behind these an indexer's queries, [heads * dim, q_rank]."""
    kv_norm: NormWeights
    """[kv_rank]"""
    key_up: LinearWeights
    """[num_heads * kv_rank, plain_dim], head by head: what takes queries to the states' space."""
    value_up: LinearWeights
    """[num_heads * value_dim, kv_rank], head by head: what takes values from there."""
    output: LinearWeights
    """[hidden, num_heads * value_dim]"""
    gate: LinearWeights | None = None
    """As of other attention; so are the sinks."""
    sinks: Tensor | None = None
    index_norm: NormWeights | None = None
    """[dim] of an indexer's keys; None: the layer has none."""
    index_places: Tensor | None = None
    """float32 [pool, dim] added to their weights by their token's place in the mixture."""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.down, self.key_up, self.value_up, self.output)
        yield from (each for each in (self.q_up, self.gate) if each is not None)


@dataclass(frozen=True)
class TwoMixersWeights:
    """Attention and Mamba-2, whose outputs are added up."""

    attention: AttentionWeights
    mamba2: Mamba2Weights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from self.attention.linears
        yield from self.mamba2.linears


MixerWeights = (
    AttentionWeights
    | LatentWeights
    | CompressedWeights
    | ConvolutionWeights
    | MambaWeights
    | Mamba2Weights
    | DeltaWeights
    | TwoMixersWeights
)


@dataclass(frozen=True)
class MlpWeights:
    """A dense channel part."""

    up: LinearWeights
    """Gated: 2 * mlp_size rows, gate first; else mlp_size rows."""
    down: LinearWeights
    curve: Tensor | None = None
    """[4] float32 of xielu: alpha_p, alpha_n (before softplus), beta, eps."""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.up, self.down)


@dataclass(frozen=True)
class ExpertsWeights:
    """A mixture of experts, see ``ExpertsConfig``."""

    router: LinearWeights
    """[count, hidden]"""
    experts: tuple[MlpWeights, ...]
    correction: Tensor | None = None
    """[count] float32."""
    shared: MlpWeights | None = None
    shared_gate: LinearWeights | None = None
    """[1, hidden]"""
    router_norm: NormWeights | None = None
    own_scales: Tensor | None = None
    """[count] float32."""
    table: Tensor | None = None
    """int64 [vocab, used]: those that each token goes through."""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield self.router
        for mlp in (*self.experts, *([] if self.shared is None else [self.shared])):
            yield from mlp.linears
        if self.shared_gate is not None:
            yield self.shared_gate


@dataclass(frozen=True)
class MlpAndExpertsWeights:
    """Both, side by side: norm, part, norm; what they give is added up."""

    mlp: MlpWeights
    experts: ExpertsWeights
    mlp_norm: NormWeights
    mlp_post_norm: NormWeights
    experts_norm: NormWeights
    """The router reads the stream before it."""
    experts_post_norm: NormWeights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from self.mlp.linears
        yield from self.experts.linears


@dataclass(frozen=True)
class SideWeights:
    """A second path beside the mixer, see ``ModelConfig.side_rank``."""

    down: LinearWeights
    """[rank, hidden]"""
    up: LinearWeights
    """[hidden, rank]"""
    norm: NormWeights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.down, self.up)


@dataclass(frozen=True)
class StreamsWeights:
    """How a layer predicts and corrects the streams, see ``StreamsConfig``."""

    router: LinearWeights
    """[count, hidden]"""
    router_norm: NormWeights
    predict: LinearWeights
    """[count * count, count]: for each stream, the shares of all in it."""
    correct: LinearWeights
    """[count, count]"""
    scale: Tensor | None = None
    """float32 [hidden]"""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.router, self.predict, self.correct)


@dataclass(frozen=True)
class LayerInputWeights:
    """How a layer reads its input, see ``LayerInputsConfig``."""

    gate: LinearWeights
    """[size, hidden]"""
    output: LinearWeights
    """[hidden, size]"""
    norm: NormWeights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.gate, self.output)


@dataclass(frozen=True)
class LayerInputsWeights:
    """What the inputs of all layers are made of, see ``LayerInputsConfig``."""

    projection: LinearWeights
    """[count * size, hidden], layer by layer."""
    norm: NormWeights
    """[size]"""
    table: Held = Held()
    """[vocab_size, count * size]; read anew each time where it is a file's."""

    @property
    def whole(self) -> Tensor | Matrix:
        """``table``, unread."""
        held: Tensor | Matrix = self.__dict__["_table"]
        return held


@dataclass(frozen=True)
class StreamEndsWeights:
    """What makes the streams but the first of an embedding, and what takes them to where the first one is."""

    spread: tuple[LinearWeights, ...]
    """[count - 1] of [hidden, hidden]."""
    merge: tuple[LinearWeights, ...]


@dataclass(frozen=True)
class HyperWeights:
    """How one part of a layer is connected to the streams, or what they become at last, which has shares read alone;
    all float32."""

    mix: Tensor
    """[told, count, hidden] what all streams tell, see ``HyperConfig.told``."""
    base: Tensor
    """[told]"""
    scale: Tensor
    """Of each of its kinds of numbers."""


@dataclass(frozen=True)
class CrossWeights:
    """How one layer of a decoder reads an encoder's states."""

    norm: NormWeights
    q: LinearWeights
    kv: LinearWeights
    """Rows: num_heads * head_dim of k, then as many of v."""
    output: LinearWeights


@dataclass(frozen=True)
class FusionWeights:
    """How rows of a multi-token module begin: the token's embedding and a state side by side, each normed."""

    projection: LinearWeights
    """[hidden, 2 * hidden]"""
    embedding_norm: NormWeights
    hidden_norm: NormWeights
    hidden_first: bool
    """The projection reads the state, then the embedding; else the embedding, then the state."""


ChannelWeights = MlpWeights | ExpertsWeights | MlpAndExpertsWeights


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer: a mixer and a channel part, or one of them; norms that the family does not have are None."""

    mixer: MixerWeights | None
    channel: ChannelWeights | None
    attention_norm: NormWeights | None = None
    mlp_norm: NormWeights | None = None
    attention_post_norm: NormWeights | None = None
    mlp_post_norm: NormWeights | None = None
    cross: CrossWeights | None = None
    """Between the two, in a decoder that reads an encoder's states."""
    side: SideWeights | None = None
    streams: StreamsWeights | None = None
    hyper: tuple[HyperWeights, HyperWeights] | None = None
    """Of the mixer, and of the channel part."""
    input: LayerInputWeights | None = None
    scale: Tensor | None = None
    """float32 [1] of what it gives."""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        for part in (self.mixer, self.channel, self.side, self.streams, self.input):
            if part is not None:
                yield from part.linears


@dataclass(frozen=True)
class DecoderWeights:
    """A whole model, as backends read it."""

    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    head: LinearWeights
    """[vocab, hidden]; the embedding itself where the head is tied."""
    embedding: Held = Held()
    """[vocab, hidden]; kept once it has been read."""
    positions: Tensor | None = None
    """[max_positions, hidden], learned positions only."""
    rope_factors: Tensor | None = None
    """float32 [rotated dims / 2], divides the rotary frequencies of every layer: how GGUF files store Llama 3's
    scaling."""
    embedding_norm: NormWeights | None = None
    streams: StreamEndsWeights | None = None
    hyper_end: HyperWeights | None = None
    """See ``HyperConfig.merges``."""
    layer_inputs: LayerInputsWeights | None = None
    fusion: FusionWeights | None = None
    """Of a decoder whose rows read states beside their tokens."""
    identity: WeightsIdentity | None = None
    """Of the files that all of this comes from; None: it has been changed, or was never in a file."""

    @property
    def table(self) -> Tensor | Matrix:
        """``embedding``, unread."""
        held: Tensor | Matrix = self.__dict__["_embedding"]
        return held

    @property
    def linears(self) -> Iterator[LinearWeights]:
        """Every matrix but the embedding, layer by layer, the output head last."""
        for layer in self.layers:
            yield from layer.linears
        if self.streams is not None:
            yield from (*self.streams.spread, *self.streams.merge)
        if self.layer_inputs is not None:
            yield self.layer_inputs.projection
        if self.fusion is not None:
            yield self.fusion.projection
        yield self.head

    def with_layers(self, layers: Sequence[LayerWeights]) -> DecoderWeights:
        """The same with other layers; nothing is read."""
        other = copy(self)
        object.__setattr__(other, "layers", tuple(layers))
        object.__setattr__(other, "identity", None)
        return other

    def identified(self, identity: WeightsIdentity) -> DecoderWeights:
        """The same, known to be a file's."""
        other = copy(self)
        object.__setattr__(other, "identity", identity)
        return other
