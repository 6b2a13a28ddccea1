"""Layers of encoders, and of decoders that read an encoder's states; norms before or after each part.

The second mixer of such a decoder's layer is *cross attention*: queries of the text, keys and values of the encoder
memory (Vaswani et al. 2017, section 3.2.3).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from headstart.models.layers.layer import Attend, AttentionParts, MlpParts, Operation, run_attention, run_mlp


class CrossParts(Protocol):
    """Parts of cross attention, by the names of ``CrossWeights``."""

    @property
    def norm(self) -> Operation: ...
    @property
    def q(self) -> Operation: ...
    @property
    def output(self) -> Operation: ...


class StackLayerParts(AttentionParts, MlpParts, Protocol):
    """Parts of a layer, by the names of ``LayerWeights``."""

    @property
    def attention_norm(self) -> Operation: ...
    @property
    def mlp_norm(self) -> Operation: ...


class StackLayer:
    """How the parts of a layer follow each other around the residual stream [..., hidden].

    Args:
        head_dim: of its heads.
        activation, gated: of its channel part.
        normed_before: norms stand before the parts; else after the sums.
    """

    def __init__(self, head_dim: int, activation: str, gated: bool, normed_before: bool) -> None:
        self._head_dim = head_dim
        self._activation = activation
        self._gated = gated
        self._normed_before = normed_before

    def attention(self, parts: StackLayerParts, hidden: Tensor, attend: Attend) -> Tensor:
        """Rows see each other."""

        def mix(x: Tensor) -> Tensor:
            return run_attention(parts, self._head_dim, x, attend)

        return self._added(hidden, parts.attention_norm, mix)

    def cross_attention(self, parts: CrossParts, hidden: Tensor, attend: Attend) -> Tensor:
        """Rows see the encoder memory. ``attend`` is given queries alone, [..., head, head_dim]."""

        def mix(x: Tensor) -> Tensor:
            queries = parts.q(x)
            return parts.output(attend(queries.view(*queries.shape[:-1], -1, self._head_dim)))

        return self._added(hidden, parts.norm, mix)

    def channel(self, parts: StackLayerParts, hidden: Tensor) -> Tensor:
        """Every row by itself."""
        return self._added(hidden, parts.mlp_norm, lambda x: run_mlp(parts, x, self._activation, self._gated))

    def _added(self, hidden: Tensor, norm: Operation, part: Operation) -> Tensor:
        return hidden + part(norm(hidden)) if self._normed_before else norm(hidden + part(hidden))
