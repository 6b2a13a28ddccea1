"""How mixers that keep a state are put together: the part of ``assembly`` that is theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headstart.models.layout_tensors import LayoutTensors
from headstart.models.linear_weights import NormWeights
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config, MambaConfig
from headstart.models.state_weights import ConvolutionWeights, DeltaWeights, Mamba2Weights, MambaWeights


@dataclass(frozen=True)
class StateAssembly(LayoutTensors):
    """Each from the tensors that a family's layout names."""

    def _convolution(self, index: int, convolution: ConvolutionConfig) -> ConvolutionWeights:
        size, bias = self.config.hidden_size, convolution.bias
        return ConvolutionWeights(
            input=self._linear(index, {"convolution_input": 3 * size}, size, bias),
            kernel=self._kernel(index, "convolution_kernel", size, convolution.length),
            kernel_bias=self._beside(index, "convolution_kernel", size) if bias else None,
            output=self._linear(index, {"convolution_output": size}, size, bias),
        )

    def _mamba(self, index: int, mamba: MambaConfig) -> MambaWeights:
        inner, size, hidden = mamba.inner, mamba.state_size, self.config.hidden_size
        norms = None
        if mamba.norms != "none":
            norms = (
                self._state_norm(index, "step_norm", mamba.step_rank, mamba.norms == "learnt"),
                self._state_norm(index, "where_to_norm", size, mamba.norms == "learnt"),
                self._state_norm(index, "from_where_norm", size, mamba.norms == "learnt"),
            )
        return MambaWeights(
            input=self._linear(index, {"mamba_input": 2 * inner}, hidden, mamba.bias),
            kernel=self._kernel(index, "convolution_kernel", inner, mamba.length),
            kernel_bias=self._beside(index, "convolution_kernel", inner) if mamba.kernel_bias else None,
            selection=self._linear(index, {"mamba_selection": mamba.step_rank + 2 * size}, inner, False),
            step=self._linear(index, {"mamba_step": inner}, mamba.step_rank, False),
            step_bias=self._vector(index, "step_bias", inner),
            log_decay=self._vector(index, "log_decay", size, inner),
            skip=self._vector(index, "skip", inner),
            norms=norms,
            output=self._linear(index, {"mamba_output": hidden}, inner, mamba.bias),
        )

    def _state_norm(self, index: int, role: str, size: int, learnt: bool) -> NormWeights:
        if learnt:
            return NormWeights(self._vector(index, role, size))
        return NormWeights(torch.ones(size, device=self._device))

    def _mamba2(self, index: int, mamba: Mamba2Config) -> Mamba2Weights:
        heads = mamba.heads
        bias = self._beside(index, "convolution_kernel", mamba.convolved) if mamba.kernel_bias else None
        read = {"mamba_input": mamba.inner + mamba.convolved + heads}
        return Mamba2Weights(
            input=self._linear(index, read, self.config.hidden_size, mamba.bias),
            kernel=self._kernel(index, "convolution_kernel", mamba.convolved, mamba.length),
            kernel_bias=bias,
            step_bias=self._vector(index, "step_bias", heads),
            log_decay=self._vector(index, "log_decay", heads),
            skip=self._vector(index, "skip", heads),
            norm=None if mamba.norm == "none" else NormWeights(self._vector(index, "state_norm", mamba.inner)),
            output=self._linear(index, {"mamba_output": self.config.hidden_size}, mamba.inner, mamba.bias),
        )

    def _delta(self, index: int, delta: DeltaConfig) -> DeltaWeights:
        heads, hidden = delta.value_heads, self.config.hidden_size
        names = self.layout.layer
        sizes = {"delta_qkv": delta.convolved, "delta_gate": delta.values}
        if "delta_qkv_gate" in names:
            sizes = {"delta_qkv_gate": delta.convolved + delta.values}
        rates = {"delta_share": heads, "delta_step": heads}
        if "delta_share_step" in names:
            rates = {"delta_share_step": 2 * heads}
        return DeltaWeights(
            input=self._linear(index, sizes, hidden, False),
            rates=self._linear(index, rates, hidden, False),
            kernel=self._kernel(index, "convolution_kernel", delta.convolved, delta.length),
            step_bias=self._vector(index, "step_bias", heads),
            log_decay=self._vector(index, "log_decay", heads),
            norm=NormWeights(self._vector(index, "state_norm", delta.value_dim)),
            output=self._linear(index, {"delta_output": hidden}, delta.values, False),
        )
