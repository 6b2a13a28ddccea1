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
from typing import Protocol, overload

from torch import Tensor

from headstart.models.files import WeightsIdentity
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


class _Held:
    """A field that is a tensor for whoever reads it, and may be a ``Matrix`` that reads it from a file each time."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Tensor: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Tensor: ...
    def __get__(self, instance: object | None, owner: type) -> Tensor:
        if instance is None:
            raise AttributeError  # to a dataclass: there is no default
        held: Tensor | Matrix = instance.__dict__[self._name]
        return held if isinstance(held, Tensor) else held.tensor()

    def __set__(self, instance: object, value: Tensor | Matrix) -> None:
        instance.__dict__[self._name] = value


@dataclass(frozen=True)
class NormWeights:
    """An RMS or layer norm."""

    weight: Tensor
    """[hidden] (or [head_dim] for q/k norms)."""
    bias: Tensor | None = None
    """[hidden], layer norm only."""


@dataclass(frozen=True)
class LinearWeights:
    """A matrix and its bias."""

    weight: _Held = _Held()
    """[out, in]; read anew each time where it is a file's."""
    bias: Tensor | None = None
    """[out]."""
    stored_bits: float = 16.0
    """What a weight takes in the file that it comes from; of several matrices in one, the most."""

    @property
    def matrix(self) -> Tensor | Matrix:
        """``weight``, unread."""
        held: Tensor | Matrix = self.__dict__["_weight"]
        return held


@dataclass(frozen=True)
class AttentionWeights:
    """Attention over keys and values of heads; norms that the family does not have are None."""

    qkv: LinearWeights
    """Rows: num_heads * head_dim of q, then num_kv_heads * head_dim of k, then as many of v."""
    output: LinearWeights
    q_norm: NormWeights | None = None
    """[head_dim], [num_heads, head_dim] or [num_heads * head_dim], see ``HeadNorms``."""
    k_norm: NormWeights | None = None
    sinks: Tensor | None = None
    """[num_heads] float32."""
    gate: LinearWeights | None = None
    """[num_heads * head_dim, hidden]"""

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
    rope_dim of the key that all heads share."""
    q_norm: NormWeights | None
    """[q_rank]"""
    q_up: LinearWeights | None
    """[num_heads * head_dim, q_rank]"""
    kv_norm: NormWeights
    """[kv_rank]"""
    key_up: LinearWeights
    """[num_heads * kv_rank, plain_dim], head by head: what takes queries to the states' space."""
    value_up: LinearWeights
    """[num_heads * value_dim, kv_rank], head by head: what takes values from there."""
    output: LinearWeights
    """[hidden, num_heads * value_dim]"""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield self.down
        if self.q_up is not None:
            yield self.q_up
        yield from (self.key_up, self.value_up, self.output)


@dataclass(frozen=True)
class ConvolutionWeights:
    """A short convolution, see ``ConvolutionConfig``."""

    input: LinearWeights
    """[3 * hidden, hidden]: what gates the convolution's input, what gates its output, the input."""
    kernel: Tensor
    """float32 [hidden, length], the last column for the row itself."""
    kernel_bias: Tensor | None
    """float32 [hidden]"""
    output: LinearWeights
    """[hidden, hidden]"""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.input, self.output)


@dataclass(frozen=True)
class MambaWeights:
    """See ``MambaConfig``; vectors are float32."""

    input: LinearWeights
    """Rows: ``inner`` of what is written, as many of the gate."""
    kernel: Tensor
    """[inner, length], the last column for the row itself."""
    kernel_bias: Tensor | None
    """[inner]"""
    selection: LinearWeights
    """[step_rank + 2 * state_size, inner]: what steps are made from, where to, from where."""
    step: LinearWeights
    """[inner, step_rank]"""
    step_bias: Tensor
    """[inner]"""
    log_decay: Tensor
    """[inner, state_size] logarithm of how fast a state decays, for a step of 1."""
    skip: Tensor
    """[inner] share of what is written that goes to the output at once."""
    norms: tuple[NormWeights, NormWeights, NormWeights] | None
    """Of what steps are made from [step_rank], of where to and from where [state_size]."""
    output: LinearWeights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.input, self.selection, self.step, self.output)


@dataclass(frozen=True)
class Mamba2Weights:
    """See ``Mamba2Config``; vectors are float32."""

    input: LinearWeights
    """Rows: ``inner`` of the gate, ``inner`` of what is written, groups * state_size of where to, as many of from
    where, heads of the step."""
    kernel: Tensor
    """[convolved, length], the last column for the row itself."""
    kernel_bias: Tensor | None
    """[convolved]"""
    step_bias: Tensor
    """[head]"""
    log_decay: Tensor
    """[head] logarithm of how fast a state decays, for a step of 1."""
    skip: Tensor
    """[head] share of what is written that goes to the output at once."""
    norm: NormWeights | None
    """[inner]"""
    output: LinearWeights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.input, self.output)


@dataclass(frozen=True)
class DeltaWeights:
    """See ``DeltaConfig``; vectors are float32."""

    input: LinearWeights
    """Rows: ``keys`` of queries, as many of keys, ``values`` of values, as many of the gate, value_heads of how much is
    written, as many of the step."""
    kernel: Tensor
    """[convolved, length], the last column for the row itself."""
    step_bias: Tensor
    """[value_head]"""
    log_decay: Tensor
    """[value_head] logarithm of how fast a state decays, for a step of 1."""
    norm: NormWeights
    """[value_dim]"""
    output: LinearWeights

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.input, self.output)


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

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield self.router
        for mlp in (*self.experts, *([] if self.shared is None else [self.shared])):
            yield from mlp.linears
        if self.shared_gate is not None:
            yield self.shared_gate


@dataclass(frozen=True)
class CrossWeights:
    """How one layer of a decoder reads an encoder's states."""

    norm: NormWeights
    q: LinearWeights
    kv: LinearWeights
    """Rows: num_heads * head_dim of k, then as many of v."""
    output: LinearWeights


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer: a mixer and a channel part, or one of them; norms that the family does not have are None."""

    mixer: MixerWeights | None
    channel: MlpWeights | ExpertsWeights | None
    attention_norm: NormWeights | None = None
    mlp_norm: NormWeights | None = None
    attention_post_norm: NormWeights | None = None
    mlp_post_norm: NormWeights | None = None
    cross: CrossWeights | None = None
    """Between the two, in a decoder that reads an encoder's states."""


@dataclass(frozen=True)
class DecoderWeights:
    """A whole model, as backends read it."""

    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    head: LinearWeights
    """[vocab, hidden]; the embedding itself where the head is tied."""
    embedding: _Held = _Held()
    """[vocab, hidden]; kept once it has been read."""
    positions: Tensor | None = None
    """[max_positions, hidden], learned positions only."""
    rope_factors: Tensor | None = None
    """float32 [rotated dims / 2], divides the rotary frequencies of every layer: how GGUF files store Llama 3's
    scaling."""
    embedding_norm: NormWeights | None = None
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
            if layer.mixer is not None:
                yield from layer.mixer.linears
            if layer.channel is not None:
                yield from layer.channel.linears
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
