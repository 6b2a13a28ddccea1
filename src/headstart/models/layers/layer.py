"""A decoder layer in PyTorch, once: for passes, for training, and for trained heads.

A layer is a mixer, through which rows see each other, and a channel part, which treats every row by itself. What the
parts are (packed matrices or parameters, norms that keep gradients or not) is their owner's affair; what is done with
them stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.models.config import ModelConfig

Operation = Callable[[Tensor], Tensor]
"""[..., in] -> [..., out]."""
Attend = Callable[[Tensor], Tensor]
"""Heads as they were projected, [..., head + 2 * kv_head, head_dim] (queries, keys, values) -> what each query's head
sees, side by side [..., head * head_dim]. Norms and rotations of heads are its affair, as are caches and masks."""


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Operation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": _relu2,
}


def xielu(x: Tensor, curve: Tensor) -> Tensor:
    """The activation with learnt ``curve`` [4]: alpha_p, alpha_n, beta, eps (Huang et al. 2024, equation 5; alphas as
    transformers stores them)."""
    above, below, slope, least = curve.to(x.dtype)
    above, below = F.softplus(above), slope + F.softplus(below)
    falling = (torch.expm1(torch.minimum(x, least)) - x) * below + slope * x
    return torch.where(x > 0, above * x * x + slope * x, falling)


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


class LayerParts(Protocol):
    """A layer's norms, by the names of ``LayerWeights``, and its channel part."""

    @property
    def attention_norm(self) -> Operation | None: ...
    @property
    def mlp_norm(self) -> Operation | None: ...
    @property
    def attention_post_norm(self) -> Operation | None: ...
    @property
    def mlp_post_norm(self) -> Operation | None: ...
    @property
    def channel(self) -> Operation | None: ...
    @property
    def side(self) -> Operation | None:
        """A second path beside the mixer, on the normed stream; see ``ModelConfig.side_rank``."""
        ...


class SideParts(Protocol):
    """By the names of ``SideWeights``."""

    @property
    def down(self) -> Operation: ...
    @property
    def up(self) -> Operation: ...
    @property
    def norm(self) -> Operation: ...


class HeadLayerParts(AttentionParts, MlpParts, Protocol):
    """Parts of a trained head's layer, which has no norms after attention and channel part."""

    @property
    def input_norm(self) -> Operation: ...
    @property
    def mlp_norm(self) -> Operation: ...


def run_attention(
    parts: AttentionParts, head_dim: int, x: Tensor, attend: Attend, gate: Operation | None = None
) -> Tensor:
    """[..., in] -> [..., hidden]; ``gate``: what is seen is multiplied by its sigmoid, one for each number or head."""
    heads = parts.qkv(x)
    seen = attend(heads.view(*heads.shape[:-1], -1, head_dim))
    if gate is None:
        return parts.output(seen)
    opened = gate(x).sigmoid()
    return parts.output(seen * opened.repeat_interleave(seen.shape[-1] // opened.shape[-1], dim=-1))


def run_mlp(
    parts: MlpParts,
    x: Tensor,
    activation: str = "silu",
    gated: bool = True,
    curve: Tensor | None = None,
    cut: float | None = None,
    limit: tuple[float, float] | None = None,
) -> Tensor:
    """[..., hidden] -> [..., hidden]; ``curve``: of xielu; ``cut``: so many standard deviations above a row's mean gate
    counts as 0, and what is below it, too; ``limit``: see ``LayerConfig.cuts``."""
    raised = parts.up(x)
    activate = ACTIVATIONS[activation] if curve is None else partial(xielu, curve=curve)
    if not gated:
        return parts.down(activate(raised))
    gate, up = raised.chunk(2, dim=-1)
    if cut is not None:
        least = gate.mean(-1, keepdim=True) + gate.std(-1, keepdim=True, correction=0) * cut
        gate = F.relu(gate - least)
    gate = activate(gate)
    if limit is not None:
        gate, up = gate.clamp(max=limit[0]), up.clamp(-limit[1], limit[1])
    return parts.down(gate * up)


def run_side(parts: SideParts, x: Tensor) -> Tensor:
    """[..., hidden] -> [..., hidden] (LAuReL, low-rank: Menghani et al. 2024, section 2.2, with a norm)."""
    return x + parts.norm(parts.up(parts.down(x)))


def run_layer(config: ModelConfig, parts: LayerParts, hidden: Tensor, mix: Operation | None) -> Tensor:
    """A layer around the residual stream: [..., hidden] -> [..., hidden]. ``mix``: its mixer, on the normed stream."""
    if mix is None or parts.channel is None:
        return _run_part(parts, hidden, mix)
    normed = _normed(parts.attention_norm, hidden)
    attended = mix(normed)
    if config.residual.parallel:
        read = normed if config.norms.shared else _normed(parts.mlp_norm, hidden)
        return hidden + attended + parts.channel(read)
    hidden = hidden + _normed(parts.attention_post_norm, attended)
    if parts.side is not None:
        hidden = (hidden + parts.side(normed)) * 2**-0.5
    changed = parts.channel(_normed(parts.mlp_norm, hidden))
    return hidden + _normed(parts.mlp_post_norm, changed)


def _run_part(parts: LayerParts, hidden: Tensor, mix: Operation | None) -> Tensor:
    """A layer of one part alone."""
    if mix is not None:
        return hidden + mix(_normed(parts.attention_norm, hidden))
    return hidden if parts.channel is None else hidden + parts.channel(_normed(parts.mlp_norm, hidden))


Around = Callable[[Tensor], tuple[Tensor, Operation]]
"""What a part of a layer would read -> what it reads instead, and what is made of what it gives."""


def run_head_layers(
    layers: Iterable[HeadLayerParts],
    head_dim: int,
    x: Tensor,
    residual: Tensor,
    attend: Callable[[int, Tensor], Tensor],
    around: Sequence[tuple[Around, Around]] | None = None,
) -> Tensor:
    """A trained head's layers, the first of which reads ``x`` instead of the normed residual stream.

    Args:
        x: [..., in] what the first layer reads.
        residual: [..., hidden] what it is added to.
        attend: of each layer, by its index.
        around: what stands around each layer's attention and its MLP; None: nothing.
    """
    for index, layer in enumerate(layers):
        if index > 0:
            x = layer.input_norm(residual)
        if around is None:
            hidden = residual + run_attention(layer, head_dim, x, partial(attend, index))
            residual = hidden + run_mlp(layer, layer.mlp_norm(hidden))
            continue
        of_attention, of_mlp = around[index]
        x, finish = of_attention(x)
        hidden = residual + finish(run_attention(layer, head_dim, x, partial(attend, index)))
        x, finish = of_mlp(layer.mlp_norm(hidden))
        residual = hidden + finish(run_mlp(layer, x))
    return residual


def _normed(norm: Operation | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)
