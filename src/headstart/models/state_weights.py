"""Weights of layers that keep a state in place of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from headstart.models.linear_weights import LinearWeights, NormWeights


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
    """Rows: ``keys`` of queries, as many of keys, ``values`` of values, as many of the gate. By key also ``keys`` of
    the step; where there is a ``rank``, so many of what the gate is made of, as many of the step's."""
    rates: LinearWeights
    """Rows: value_heads of how much is written, as many of the step unless that is by key."""
    kernel: Tensor
    """[convolved, length], the last column for the row itself."""
    step_bias: Tensor
    """[decays]"""
    log_decay: Tensor
    """[decays] logarithm of how fast a state decays, for a step of 1."""
    norm: NormWeights
    """[value_dim]"""
    output: LinearWeights
    ups: tuple[LinearWeights, ...] = ()
    """Where there is a ``rank``: [values, rank] of the gate, [keys, rank] of the step."""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.input, self.output, self.rates, *self.ups)
