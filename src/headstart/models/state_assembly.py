"""How mixers that keep a state are put together: the part of ``assembly`` that is theirs."""

from __future__ import annotations

import torch

from headstart.models.layout_tensors import LayoutTensors, stacked
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config, MambaConfig
from headstart.models.state_weights import ConvolutionWeights, DeltaWeights, Mamba2Weights, MambaWeights


def convolution_weights(tensors: LayoutTensors, index: int, convolution: ConvolutionConfig) -> ConvolutionWeights:
    """Of the layer of this number, as all here."""
    size, bias = tensors.config.hidden_size, convolution.bias
    return ConvolutionWeights(
        input=tensors.linear(index, {"convolution_input": 3 * size}, size, bias),
        kernel=tensors.kernel(index, "convolution_kernel", size, convolution.length),
        kernel_bias=tensors.bias_of(index, "convolution_kernel", size) if bias else None,
        output=tensors.linear(index, {"convolution_output": size}, size, bias),
    )


def mamba_weights(tensors: LayoutTensors, index: int, mamba: MambaConfig) -> MambaWeights:
    """Of a selective state space of channels."""
    inner, size, hidden = mamba.inner, mamba.state_size, tensors.config.hidden_size
    norms = None
    if mamba.norms != "none":
        norms = (
            _state_norm(tensors, index, "step_norm", mamba.step_rank, mamba.norms == "learnt"),
            _state_norm(tensors, index, "where_to_norm", size, mamba.norms == "learnt"),
            _state_norm(tensors, index, "from_where_norm", size, mamba.norms == "learnt"),
        )
    return MambaWeights(
        input=tensors.linear(index, {"mamba_input": 2 * inner}, hidden, mamba.bias),
        kernel=tensors.kernel(index, "convolution_kernel", inner, mamba.length),
        kernel_bias=tensors.bias_of(index, "convolution_kernel", inner) if mamba.kernel_bias else None,
        selection=tensors.linear(index, {"mamba_selection": mamba.step_rank + 2 * size}, inner, False),
        step=tensors.linear(index, {"mamba_step": inner}, mamba.step_rank, False),
        step_bias=tensors.vector(index, "step_bias", inner),
        log_decay=tensors.vector(index, "log_decay", size, inner),
        skip=tensors.vector(index, "skip", inner),
        norms=norms,
        output=tensors.linear(index, {"mamba_output": hidden}, inner, mamba.bias),
    )


def _state_norm(tensors: LayoutTensors, index: int, role: str, size: int, learnt: bool) -> NormWeights:
    if learnt:
        return NormWeights(tensors.vector(index, role, size))
    return NormWeights(torch.ones(size, device=tensors.device))


def mamba2_weights(tensors: LayoutTensors, index: int, mamba: Mamba2Config) -> Mamba2Weights:
    """Of a selective state space of heads."""
    heads = mamba.heads
    bias = tensors.bias_of(index, "convolution_kernel", mamba.convolved) if mamba.kernel_bias else None
    read = {"mamba_input": mamba.inner + mamba.convolved + heads}
    return Mamba2Weights(
        input=tensors.linear(index, read, tensors.config.hidden_size, mamba.bias),
        kernel=tensors.kernel(index, "convolution_kernel", mamba.convolved, mamba.length),
        kernel_bias=bias,
        step_bias=tensors.vector(index, "step_bias", heads),
        log_decay=tensors.vector(index, "log_decay", heads),
        skip=tensors.vector(index, "skip", heads),
        norm=None if mamba.norm == "none" else NormWeights(tensors.vector(index, "state_norm", mamba.inner)),
        output=tensors.linear(index, {"mamba_output": tensors.config.hidden_size}, mamba.inner, mamba.bias),
    )


def delta_weights(tensors: LayoutTensors, index: int, delta: DeltaConfig) -> DeltaWeights:
    """Of the gated delta rule."""
    heads, hidden = delta.value_heads, tensors.config.hidden_size
    names = tensors.layout.layer
    if delta.by_key:
        return _delta_by_key(tensors, index, delta)
    sizes = {"delta_qkv": delta.convolved, "delta_gate": delta.values}
    if "delta_qkv_gate" in names:
        sizes = {"delta_qkv_gate": delta.convolved + delta.values}
    rates = {"delta_share": heads, "delta_step": heads}
    if "delta_share_step" in names:
        rates = {"delta_share_step": 2 * heads}
    return DeltaWeights(
        input=tensors.linear(index, sizes, hidden, False),
        rates=tensors.linear(index, rates, hidden, False),
        kernel=tensors.kernel(index, "convolution_kernel", delta.convolved, delta.length),
        step_bias=tensors.vector(index, "step_bias", heads),
        log_decay=tensors.vector(index, "log_decay", heads),
        norm=NormWeights(tensors.vector(index, "state_norm", delta.value_dim)),
        output=tensors.linear(index, {"delta_output": hidden}, delta.values, False),
    )


def _delta_by_key(tensors: LayoutTensors, index: int, delta: DeltaConfig) -> DeltaWeights:
    """Of the delta rule whose keys' numbers decay each by itself."""
    hidden, keys, values, rank = tensors.config.hidden_size, delta.keys, delta.values, delta.rank
    parts = {"delta_gate": values, "delta_step": keys}
    ups: tuple[LinearWeights, ...] = ()
    if rank is not None:
        ups = tuple(tensors.linear(index, {f"{role}_up": size}, rank, False) for role, size in parts.items())
        parts = dict.fromkeys(parts, rank)
    sizes = {"delta_q": keys, "delta_k": keys, "delta_v": values}
    return DeltaWeights(
        input=tensors.linear(index, sizes | parts, hidden, False),
        rates=tensors.linear(index, {"delta_share": delta.value_heads}, hidden, False),
        kernel=stacked([tensors.kernel(index, f"{role}_kernel", size, delta.length) for role, size in sizes.items()]),
        step_bias=tensors.vector(index, "step_bias", keys),
        log_decay=tensors.vector(index, "log_decay", delta.key_heads)[:, None].expand(-1, delta.key_dim).reshape(-1),
        norm=NormWeights(tensors.vector(index, "state_norm", delta.value_dim)),
        output=tensors.linear(index, {"delta_output": hidden}, values, False),
        ups=ups,
    )
