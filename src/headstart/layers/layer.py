"""A decoder layer in PyTorch, once: for passes, for training, and for trained heads.

A layer is a mixer, through which rows see each other, and a channel part, which treats every row by itself. What the
parts are (packed matrices or parameters, norms that keep gradients or not) is their owner's affair; what is done with
them stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from headstart.models.config import ModelConfig

Operation = Callable[[Tensor], Tensor]
"""[..., in] -> [..., out]."""
Attend = Callable[[Tensor], Tensor]
"""Heads as they were projected, [..., head + 2 * kv_head, head_dim] (queries, keys, values) -> what each query's head
sees, side by side [..., head * head_dim]. Norms and rotations of heads are its affair, as are caches and masks."""

ACTIVATIONS: dict[str, Operation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class AttentionParts(Protocol):
    """Projections of attention."""

    @property
    def qkv(self) -> Operation: ...
    @property
    def output(self) -> Operation: ...


class MlpParts(Protocol):
    """Projections of a dense channel part."""

    @property
    def up(self) -> Operation:
        """Of a gated one: the gate's rows first."""
        ...

    @property
    def down(self) -> Operation: ...


class LayerParts(AttentionParts, MlpParts, Protocol):
    """A layer's parts, by the names of ``LayerWeights``."""

    @property
    def attention_norm(self) -> Operation: ...
    @property
    def mlp_norm(self) -> Operation: ...
    @property
    def attention_post_norm(self) -> Operation | None: ...
    @property
    def mlp_post_norm(self) -> Operation | None: ...


class HeadLayerParts(AttentionParts, MlpParts, Protocol):
    """Parts of a trained head's layer, which has no norms after attention and channel part."""

    @property
    def input_norm(self) -> Operation: ...
    @property
    def mlp_norm(self) -> Operation: ...


def run_attention(parts: AttentionParts, head_dim: int, x: Tensor, attend: Attend) -> Tensor:
    """[..., in] -> [..., hidden]."""
    heads = parts.qkv(x)
    return parts.output(attend(heads.view(*heads.shape[:-1], -1, head_dim)))


def run_mlp(parts: MlpParts, x: Tensor, activation: str = "silu", gated: bool = True) -> Tensor:
    """[..., hidden] -> [..., hidden]."""
    raised, activate = parts.up(x), ACTIVATIONS[activation]
    if not gated:
        return parts.down(activate(raised))
    gate, up = raised.chunk(2, dim=-1)
    return parts.down(activate(gate) * up)


def run_layer(config: ModelConfig, parts: LayerParts, hidden: Tensor, attend: Attend) -> Tensor:
    """A layer around the residual stream: [..., hidden] -> [..., hidden]."""
    attended = run_attention(parts, config.head_dim, parts.attention_norm(hidden), attend)
    if config.parallel_residual:
        return hidden + attended + _channel(config, parts, hidden)
    if parts.attention_post_norm is not None:
        attended = parts.attention_post_norm(attended)
    hidden = hidden + attended
    changed = _channel(config, parts, hidden)
    if parts.mlp_post_norm is not None:
        changed = parts.mlp_post_norm(changed)
    return hidden + changed


def run_head_layers(
    layers: Iterable[HeadLayerParts],
    head_dim: int,
    x: Tensor,
    residual: Tensor,
    attend: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """A trained head's layers, the first of which reads ``x`` instead of the normed residual stream.

    Args:
        x: [..., in] what the first layer reads.
        residual: [..., hidden] what it is added to.
        attend: of each layer, by its index.
    """
    for index, layer in enumerate(layers):
        if index > 0:
            x = layer.input_norm(residual)
        hidden = residual + run_attention(layer, head_dim, x, partial(attend, index))
        residual = hidden + run_mlp(layer, layer.mlp_norm(hidden))
    return residual


def _channel(config: ModelConfig, parts: LayerParts, hidden: Tensor) -> Tensor:
    return run_mlp(parts, parts.mlp_norm(hidden), config.activation, config.gated_mlp)
