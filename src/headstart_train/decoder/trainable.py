"""A decoder that gradients flow through: whole packs of text at once, no cache, the families of ``decoder.Decoder``.

It exists to be trained, or trained through. Passes that serve are ``torch_backend``'s and the native ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.errors import ConfigError
from headstart.models.config import HeadNorms, LayerConfig, ModelConfig
from headstart.models.layers.experts import run_experts
from headstart.models.layers.layer import run_attention, run_layer, run_mlp
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.weights import AttentionWeights, DecoderWeights, ExpertsWeights, LayerWeights, MlpWeights
from headstart_train.decoder.rotary_table import RotaryTable

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
        weight, eps = self.weight + self.config.norms.offset, self.config.norms.eps
        if self.config.norms.kind == "layer":
            return F.layer_norm(x.float(), weight.shape, weight, self.bias, eps)
        return F.rms_norm(x.float(), weight.shape, None, eps) * weight

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


class TrainableHeadNorm(nn.Module):
    """The norm of a layer's queries, or of its keys: [..., head, head_dim] -> the same."""

    def __init__(self, config: ModelConfig, norms: HeadNorms, weights: NormWeights, keep: Keep) -> None:
        super().__init__()
        self.config, self.norms = config, norms
        self.weight = keep(weights.weight)
        self.bias = None if weights.bias is None else keep(weights.bias)

    def forward(self, heads: Tensor) -> Tensor:
        eps, together = self.config.norms.eps, self.norms.reach == "all"
        x = heads.flatten(-2) if together else heads
        shape = x.shape[-1:]
        normed = F.rms_norm(x, shape, None, eps) if self.norms.kind == "rms" else F.layer_norm(x, shape, eps=eps)
        normed = normed * (self.weight + self.config.norms.offset)
        normed = normed if self.bias is None else normed + self.bias
        return normed.view(heads.shape)

    @property
    def weights(self) -> NormWeights:
        return NormWeights(self.weight.detach(), None if self.bias is None else self.bias.detach())


class TrainableAttention(nn.Module):
    """The parameters of attention, by ``AttentionWeights``' names."""

    def __init__(self, config: ModelConfig, weights: AttentionWeights, keep: Keep) -> None:
        super().__init__()
        self.config = config
        self.qkv, self.output = TrainableLinear(weights.qkv, keep), TrainableLinear(weights.output, keep)
        self.gate = None if weights.gate is None else TrainableLinear(weights.gate, keep)
        self.q_norm, self.k_norm = (
            None
            if norm is None or config.attention.qk_norm is None
            else TrainableHeadNorm(config, config.attention.qk_norm, norm, keep)
            for norm in (weights.q_norm, weights.k_norm)
        )

    @property
    def weights(self) -> AttentionWeights:
        return AttentionWeights(
            qkv=self.qkv.weights,
            output=self.output.weights,
            q_norm=None if self.q_norm is None else self.q_norm.weights,
            k_norm=None if self.k_norm is None else self.k_norm.weights,
            gate=None if self.gate is None else self.gate.weights,
        )


class TrainableMlp(nn.Module):
    """The parameters of a dense channel part, by ``MlpWeights``' names."""

    def __init__(self, config: ModelConfig, weights: MlpWeights, keep: Keep) -> None:
        super().__init__()
        self.config = config
        self.up, self.down = TrainableLinear(weights.up, keep), TrainableLinear(weights.down, keep)
        self.curve = None if weights.curve is None else keep(weights.curve)

    def forward(self, x: Tensor) -> Tensor:
        return run_mlp(self, x, self.config.mlp.activation, self.config.mlp.gated, self.curve)

    @property
    def weights(self) -> MlpWeights:
        return MlpWeights(self.up.weights, self.down.weights, None if self.curve is None else self.curve.detach())


class TrainableExperts(nn.Module):
    """The parameters of a mixture of experts, by ``ExpertsWeights``' names."""

    def __init__(self, config: ModelConfig, weights: ExpertsWeights, keep: Keep) -> None:
        super().__init__()
        self.config = config
        self.router = TrainableLinear(weights.router, keep)
        self.experts = nn.ModuleList(TrainableMlp(config, expert, keep) for expert in weights.experts)
        self.correction = None if weights.correction is None else keep(weights.correction)
        self.shared = None if weights.shared is None else TrainableMlp(config, weights.shared, keep)
        self.shared_gate = None if weights.shared_gate is None else TrainableLinear(weights.shared_gate, keep)
        self.router_norm = self.own_scales = self.table = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.config.experts is not None
        mixed, shared, _ = run_experts(self.config.experts, self, x, self.config.mlp.activation)  # type: ignore[arg-type]
        return mixed if shared is None else mixed + shared

    @property
    def weights(self) -> ExpertsWeights:
        return ExpertsWeights(
            router=self.router.weights,
            experts=tuple(expert.weights for expert in self.experts if isinstance(expert, TrainableMlp)),
            correction=None if self.correction is None else self.correction.detach(),
            shared=None if self.shared is None else self.shared.weights,
            shared_gate=None if self.shared_gate is None else self.shared_gate.weights,
        )


class TrainableLayer(nn.Module):
    """The parameters of a layer, by ``LayerWeights``' names."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, weights: LayerWeights, keep: Keep) -> None:
        super().__init__()
        assert isinstance(weights.mixer, AttentionWeights)
        assert isinstance(weights.channel, MlpWeights | ExpertsWeights)
        self.config, self.rope = config, layer.rope
        self.side = None
        self.mixer = TrainableAttention(config, weights.mixer, keep)
        self.channel: TrainableMlp | TrainableExperts
        if isinstance(weights.channel, ExpertsWeights):
            self.channel = TrainableExperts(config, weights.channel, keep)
        else:
            self.channel = TrainableMlp(config, weights.channel, keep)
        self.attention_norm, self.mlp_norm, self.attention_post_norm, self.mlp_post_norm = (
            None if norm is None else TrainableNorm(config, norm, keep)
            for norm in (
                weights.attention_norm,
                weights.mlp_norm,
                weights.attention_post_norm,
                weights.mlp_post_norm,
            )
        )

    def forward(
        self,
        hidden: Tensor,
        rotate: Callable[[int, Tensor], Tensor],
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """[pack, row, hidden] -> the same; ``rotate`` turns heads by one of the model's ropes."""
        config, mixer, norms = self.config, self.mixer, self.config.attention.qk_norm

        def attend_heads(heads: Tensor) -> Tensor:
            q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=-2)
            if norms is not None and not norms.rotated:
                q, k = normed(q, k)
            if (limit := config.attention.qkv_clip) is not None:
                q, k, v = (part.clamp(-limit, limit) for part in (q, k, v))
            if self.rope is not None:
                q, k = rotate(self.rope, q), rotate(self.rope, k)
            if norms is not None and norms.rotated:
                q, k = normed(q, k)
            return attend(q, k, v)

        def normed(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            assert mixer.q_norm is not None
            assert mixer.k_norm is not None
            return mixer.q_norm(q), mixer.k_norm(k)

        return run_layer(
            config, self, hidden, partial(run_attention, mixer, config.head_dim, attend=attend_heads, gate=mixer.gate)
        )

    @property
    def weights(self) -> LayerWeights:
        def optional(norm: TrainableNorm | None) -> NormWeights | None:
            return None if norm is None else norm.weights

        return LayerWeights(
            mixer=self.mixer.weights,
            channel=self.channel.weights,
            attention_norm=optional(self.attention_norm),
            mlp_norm=optional(self.mlp_norm),
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

    Raises:
        ConfigError: gradients are not for a model of this kind.
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

        require_trainable(config)

        def keep(tensor: Tensor) -> nn.Parameter:
            return nn.Parameter(tensor.to(device, torch.float32, copy=not frozen), requires_grad=not frozen)

        self.config = config
        parts = zip(config.layers, weights.layers, strict=True)
        self.layers = nn.ModuleList(TrainableLayer(config, layer, its_weights, keep) for layer, its_weights in parts)
        self.final_norm = TrainableNorm(config, weights.final_norm, keep)
        self._embedding = weights.embedding.to(device)
        self._learned = None if weights.positions is None else weights.positions.to(device)
        self.embedding_norm = None
        if weights.embedding_norm is not None:
            self.embedding_norm = TrainableNorm(config, weights.embedding_norm, keep)
        self._rotary = [RotaryTable(rope, torch.float32, device, weights.rope_factors) for rope in config.ropes]

    def embed(self, tokens: Tensor) -> Tensor:
        """int64 [...] ids -> float32 [..., hidden]."""
        return F.embedding(tokens, self._embedding).float() * self.config.embedding.scale

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        attend: Attend,
        reach: int | None = None,
        taps: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Embeddings [pack, row, hidden] at ``positions`` int64 [pack, row] -> states after the final norm.

        Args:
            reach: more than any of the positions; None: they are read to find it, for which a device must wait.
            taps: takes what goes into each of the layers that it names, and what comes out of the last one as the
                input of one more, as ``PassOutput.hidden`` has it.
        """
        hidden = inputs if self._learned is None else inputs + F.embedding(positions, self._learned)
        hidden = hidden if self.embedding_norm is None else self.embedding_norm(hidden)
        reach = int(positions.max()) + 1 if reach is None else reach

        def rotate(rope: int, heads: Tensor) -> Tensor:
            return self._rotary[rope].rotate(heads, positions, reach)

        for index, layer in enumerate(self.layers):
            if taps is not None and index in taps:
                taps[index] = hidden * self.config.residual.tap_scale
            hidden = layer(hidden, rotate, partial(attend, index))
        if taps is not None and len(self.layers) in taps:
            taps[len(self.layers)] = hidden * self.config.residual.tap_scale
        normed: Tensor = self.final_norm(hidden)
        return normed

    def layer_weights(self) -> tuple[tuple[LayerWeights, ...], NormWeights]:
        """What was learnt: the layers, and the final norm."""
        layers = [layer for layer in self.layers if isinstance(layer, TrainableLayer)]
        return tuple(layer.weights for layer in layers), self.final_norm.weights


def require_trainable(config: ModelConfig) -> None:
    """Refuse what gradients are not for.

    Raises:
        ConfigError: what the model has of it.
    """
    lacking = _lacking(config)
    if lacking is not None:
        raise ConfigError(
            f"{config.name or config.family} has {lacking}, which nothing is trained through; train a head that reads "
            "its states alone, as EAGLE's do."
        )


def is_trainable(config: ModelConfig) -> bool:
    """Whether ``require_trainable`` takes it."""
    return _lacking(config) is None


def _lacking(config: ModelConfig) -> str | None:
    """What a model has that gradients are not for."""
    kinds = {
        "ALiBi": config.attention.alibi is not None,
        "attention sinks": config.attention.sinks,
        "attention within chunks": any(layer.chunk is not None for layer in config.layers),
        "latent attention": config.latent is not None,
        "attention to compressed keys": config.compressed is not None,
        "layers that keep states": config.keeps_states,
        "queries that grow with their position": config.attention.query_growth is not None,
        "layers that read another one's keys": any(layer.reads is not None for layer in config.layers),
        "heads of several sizes": len({config.head_dim_of(layer) for layer in config.layers}) > 1
        or config.attention.value_dim is not None,
        "several numbers of heads": any(config.heads_of(layer) != config.num_heads for layer in config.layers),
        "norms of values": config.attention.value_norm,
        "values that are keys": any(layer.values_are_keys for layer in config.layers),
        "a second path beside attention": config.residual.side_rank is not None,
        "gates that are cut off": any(
            layer.sparsity or layer.mlp_limit or layer.expert_limit for layer in config.layers
        ),
        "experts beside an MLP": any(layer.channel == "mlp+experts" for layer in config.layers),
        "scales of layers": config.residual.layer_scales,
        "several streams": config.residual.streams is not None,
        "inputs of layers": config.layer_inputs is not None,
    }
    return next((kind for kind, has in kinds.items() if has), None)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, config: ModelConfig) -> Tensor:
    """q [pack, row, head, head_dim], k and v [pack, key, kv_head, head_dim] -> [pack, row, head * head_dim].

    ``sees``: bool [pack, row, key]; every row sees some key.
    """
    shared = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2).to(q.dtype)
    k, v = (heads.repeat_interleave(shared, dim=1) for heads in (k, v))
    if config.attention.softcap is None:
        mixed = F.scaled_dot_product_attention(q, k, v, sees[:, None], scale=config.score_scale)
    else:
        cap = config.attention.softcap
        scores = torch.tanh(q @ k.transpose(2, 3) * (config.score_scale / cap)) * cap
        mixed = scores.masked_fill(~sees[:, None], -torch.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(2)
