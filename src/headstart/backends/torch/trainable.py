"""A decoder that gradients flow through: whole packs of text at once, no cache, the families of ``decoder.Decoder``.

It exists to be trained, or trained through. Passes that serve are ``torch_backend``'s and the native ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.layers.layer import run_layer
from headstart.layers.rotary import RotaryTable
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.weights import DecoderWeights, LayerWeights, LinearWeights, NormWeights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, rotated queries [pack, row, head, head_dim], rotated keys and values [pack, row, kv_head, head_dim] ->
[pack, row, head * head_dim]."""
Keep = Callable[[Tensor], nn.Parameter]
"""How a tensor becomes a parameter."""


class TrainableNorm(nn.Module):
    """RMS or layer norm over the last axis; weights as checkpoints store them, the family's offset not added."""

    def __init__(self, config: ModelConfig, weights: NormWeights, keep: Keep) -> None:
        super().__init__()
        self.config = config
        self.weight = keep(weights.weight)
        self.bias = None if weights.bias is None else keep(weights.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, eps = self.weight + self.config.norm_offset, self.config.norm_eps
        if self.config.norm == "layer":
            return F.layer_norm(x.float(), weight.shape, weight, self.bias, eps)
        # The norm of heads may have weights [head, head_dim].
        return F.rms_norm(x.float(), weight.shape[-1:], None, eps) * weight

    @property
    def weights(self) -> NormWeights:
        return NormWeights(self.weight.detach(), None if self.bias is None else self.bias.detach())


class TrainableLinear(nn.Module):
    """y = x W^T + b."""

    def __init__(self, weights: LinearWeights, keep: Keep) -> None:
        super().__init__()
        self.weight = keep(weights.weight)
        self.bias = None if weights.bias is None else keep(weights.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @property
    def weights(self) -> LinearWeights:
        return LinearWeights(self.weight.detach(), None if self.bias is None else self.bias.detach())


class TrainableLayer(nn.Module):
    """The parameters of a layer, by ``LayerWeights``' names."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, weights: LayerWeights, keep: Keep) -> None:
        super().__init__()
        self.config, self.rope = config, layer.rope
        self.qkv, self.output = TrainableLinear(weights.qkv, keep), TrainableLinear(weights.output, keep)
        self.up, self.down = TrainableLinear(weights.up, keep), TrainableLinear(weights.down, keep)
        self.attention_norm = TrainableNorm(config, weights.attention_norm, keep)
        self.mlp_norm = TrainableNorm(config, weights.mlp_norm, keep)
        self.q_norm, self.k_norm, self.attention_post_norm, self.mlp_post_norm = (
            None if norm is None else TrainableNorm(config, norm, keep)
            for norm in (weights.q_norm, weights.k_norm, weights.attention_post_norm, weights.mlp_post_norm)
        )

    def forward(
        self,
        hidden: Tensor,
        rotate: Callable[[int, Tensor], Tensor],
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """[pack, row, hidden] -> the same; ``rotate`` turns heads by one of the model's ropes."""
        config = self.config

        def attend_heads(heads: Tensor) -> Tensor:
            q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=-2)
            if self.q_norm is not None and self.k_norm is not None:
                q, k = self.q_norm(q), self.k_norm(k)
            if self.rope is not None:
                q, k = rotate(self.rope, q), rotate(self.rope, k)
            return attend(q, k, v)

        return run_layer(config, self, hidden, attend_heads)

    @property
    def weights(self) -> LayerWeights:
        def optional(norm: TrainableNorm | None) -> NormWeights | None:
            return None if norm is None else norm.weights

        return LayerWeights(
            attention_norm=self.attention_norm.weights,
            qkv=self.qkv.weights,
            output=self.output.weights,
            mlp_norm=self.mlp_norm.weights,
            up=self.up.weights,
            down=self.down.weights,
            q_norm=optional(self.q_norm),
            k_norm=optional(self.k_norm),
            attention_post_norm=optional(self.attention_post_norm),
            mlp_post_norm=optional(self.mlp_post_norm),
        )


class TrainableDecoder(nn.Module):
    """Layers and final norm in float32. Embedding and output head are not among its parameters.

    Args:
        config: of the model.
        weights: its weights.
        frozen: nothing is learnt, and tensors that fit are used as they are; else they are copied.
        device: where it runs.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        frozen: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()

        def keep(tensor: Tensor) -> nn.Parameter:
            return nn.Parameter(tensor.to(device, torch.float32, copy=not frozen), requires_grad=not frozen)

        self.config = config
        parts = zip(config.layers, weights.layers, strict=True)
        self.layers = nn.ModuleList(TrainableLayer(config, layer, its_weights, keep) for layer, its_weights in parts)
        self.final_norm = TrainableNorm(config, weights.final_norm, keep)
        self._embedding = weights.embedding.to(device)
        self._learned = None if weights.positions is None else weights.positions.to(device)
        self._rotary = [RotaryTable(rope, torch.float32, device, weights.rope_factors) for rope in config.ropes]

    def embed(self, tokens: Tensor) -> Tensor:
        """int64 [...] ids -> float32 [..., hidden]."""
        return F.embedding(tokens, self._embedding).float() * self.config.embedding_scale

    def forward(self, inputs: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Embeddings [pack, row, hidden] at ``positions`` int64 [pack, row] -> states after the final norm."""
        hidden = inputs if self._learned is None else inputs + F.embedding(positions, self._learned)
        reach = int(positions.max()) + 1

        def rotate(rope: int, heads: Tensor) -> Tensor:
            return self._rotary[rope].rotate(heads, positions, reach)

        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotate, partial(attend, index))
        normed: Tensor = self.final_norm(hidden)
        return normed

    def layer_weights(self) -> tuple[tuple[LayerWeights, ...], NormWeights]:
        """What was learnt: the layers, and the final norm."""
        layers = [layer for layer in self.layers if isinstance(layer, TrainableLayer)]
        return tuple(layer.weights for layer in layers), self.final_norm.weights


def attend_masked(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, config: ModelConfig) -> Tensor:
    """q [pack, row, head, head_dim], k and v [pack, key, kv_head, head_dim] -> [pack, row, head * head_dim].

    ``sees``: bool [pack, row, key]; every row sees some key.
    """
    shared = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2).to(q.dtype)
    k, v = (heads.repeat_interleave(shared, dim=1) for heads in (k, v))
    if config.attention_softcap is None:
        mixed = F.scaled_dot_product_attention(q, k, v, sees[:, None], scale=config.scale)
    else:
        cap = config.attention_softcap
        scores = torch.tanh(q @ k.transpose(2, 3) * (config.scale / cap)) * cap
        mixed = scores.masked_fill(~sees[:, None], -torch.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(2)
