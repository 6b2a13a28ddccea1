"""One decoder for every family: layers configured by ``ModelConfig``, in plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.attention import AttentionLayout, attend
from headstart.backends.torch.linear import Linear
from headstart.layers.layer import run_layer
from headstart.layers.rotary import Rotation
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.rope_frequencies import amplitude, inverse_frequencies
from headstart.models.weights import DecoderWeights, LayerWeights, NormWeights


class Norm:
    """RMS or layer norm over the last axis, computed in float32, returned in the input's dtype."""

    def __init__(self, config: ModelConfig, weights: NormWeights, device: torch.device) -> None:
        self.weight = weights.weight.to(device, torch.float32) + config.norm_offset
        self.bias = None if weights.bias is None else weights.bias.to(device, torch.float32)
        self.eps = config.norm_eps
        self.is_rms = config.norm == "rms"

    def __call__(self, x: Tensor) -> Tensor:
        shape = self.weight.shape
        if self.is_rms:
            return F.rms_norm(x.float(), shape, self.weight, self.eps).to(x.dtype)
        return F.layer_norm(x.float(), shape, self.weight, self.bias, self.eps).to(x.dtype)


class HeadNorm:
    """RMS norm of every query and key head by itself."""

    def __init__(self, config: ModelConfig, q: NormWeights, k: NormWeights, device: torch.device) -> None:
        rows = [q.weight.expand(config.num_heads, -1), k.weight.expand(config.num_kv_heads, -1)]
        self.weight = torch.cat(rows).to(device, torch.float32) + config.norm_offset
        self.eps = config.norm_eps

    def apply_(self, heads: Tensor) -> None:
        """[row, num_heads + num_kv_heads, head_dim] in place."""
        heads.copy_(F.rms_norm(heads.float(), heads.shape[-1:], None, self.eps) * self.weight)


class DecoderLayer:
    """Attention and MLP around the residual stream."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        weights: LayerWeights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        linear = partial(Linear, dtype=dtype, device=device)
        self.config = config
        self.window = layer.window
        self.rope = layer.rope
        self.attention_norm = Norm(config, weights.attention_norm, device)
        self.qkv = linear(weights.qkv)
        self.head_norm: HeadNorm | None = None
        if weights.q_norm is not None and weights.k_norm is not None:
            self.head_norm = HeadNorm(config, weights.q_norm, weights.k_norm, device)
        self.output = linear(weights.output)
        self.mlp_norm = Norm(config, weights.mlp_norm, device)
        self.up = linear(weights.up)
        self.down = linear(weights.down)
        self.attention_post_norm = self.mlp_post_norm = None
        if weights.attention_post_norm is not None and weights.mlp_post_norm is not None:
            self.attention_post_norm = Norm(config, weights.attention_post_norm, device)
            self.mlp_post_norm = Norm(config, weights.mlp_post_norm, device)

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in (self.qkv, self.output, self.up, self.down))

    def __call__(self, hidden: Tensor, cache: Tensor, layout: AttentionLayout, rotations: Sequence[Rotation]) -> Tensor:
        """[row, hidden] -> [row, hidden]; the rows' keys and values are written to ``cache``
        [slot, 2, kv_head, head_dim]."""
        return run_layer(
            self.config, self, hidden, partial(self._attend, cache=cache, layout=layout, rotations=rotations)
        )

    def _attend(self, heads: Tensor, cache: Tensor, layout: AttentionLayout, rotations: Sequence[Rotation]) -> Tensor:
        config = self.config
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        if self.head_norm is not None:
            self.head_norm.apply_(rotated)
        if self.rope is not None:
            rotations[self.rope].apply_(rotated)
        cache.index_copy_(0, layout.new_slots, heads[:, config.num_heads :].view(len(heads), 2, -1, config.head_dim))
        queries = heads[:, : config.num_heads]
        return attend(queries, cache, layout, self.window, config.scale, config.attention_softcap)


class Decoder:
    """Embedding, layers, final norm and head. Runs under ``torch.inference_mode``."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = weights.embedding.to(device, dtype)
        self.positions = None if weights.positions is None else weights.positions.to(device, dtype)
        self.frequencies = [inverse_frequencies(rope, weights.rope_factors).to(device) for rope in config.ropes]
        self.layers = [
            DecoderLayer(config, layer, layer_weights, dtype, device)
            for layer, layer_weights in zip(config.layers, weights.layers, strict=True)
        ]
        self.final_norm = Norm(config, weights.final_norm, device)
        self.head = Linear(weights.head, dtype, device)

    @property
    def nbytes(self) -> int:
        """Size of tables and matrices in bytes (a tied head is held twice: as a table and packed for products)."""
        tables = self.embedding.nbytes + (0 if self.positions is None else self.positions.nbytes)
        matrices = sum(layer.nbytes for layer in self.layers)
        return tables + matrices + self.head.nbytes

    def embed(self, tokens: Tensor, positions: Tensor, inputs: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[row] ids and positions -> [row, hidden], the first layer's input.

        ``inputs``: rows, and what they read in place of their token's embedding [given, hidden].
        """
        hidden = F.embedding(tokens, self.embedding)
        if self.config.embedding_scale != 1.0:
            hidden = hidden * self.config.embedding_scale
        if inputs is not None:
            hidden = hidden.index_copy(0, *inputs)
        if self.positions is not None:
            hidden = hidden + F.embedding(positions, self.positions)
        return hidden

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """Rotation of the rows, for each of ``config.ropes``."""
        return [
            Rotation(positions, frequencies, self.dtype, amplitude(rope))
            for rope, frequencies in zip(self.config.ropes, self.frequencies, strict=True)
        ]

    def logits(self, normed: Tensor) -> Tensor:
        """[row, hidden] after the final norm -> float32 [row, vocab]."""
        logits = self.head(normed).float()
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap
