"""The parts that trained heads with decoder layers are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.errors import ConfigError
from headstart.models.config import RopeConfig, Sight
from headstart.models.layers.layer import Operation
from headstart.models.linear_weights import LinearWeights

MOST_LAYERS = 64


@dataclass(frozen=True, kw_only=True)
class LayersConfig:
    """What the configurations of these heads share. Sizes are in elements."""

    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    """Of the target."""
    draft_vocab_size: int
    """Tokens that the head can say."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    rope: RopeConfig
    num_layers: int
    taps: tuple[int, ...]
    """Layers of the target whose inputs are read, side by side."""
    norm_eps: float
    attention_bias: bool = False
    windows: tuple[int, ...] = ()
    """[layer] how many positions its rows see, their own the last of them; 0: all. Empty: all layers see all."""
    max_positions: int = field(default=2048, compare=False)
    """For the record: nothing is cut off there."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"{self.num_heads} heads do not share {self.num_kv_heads} kv heads evenly.")
        if self.rope.dim % 2:
            raise ConfigError(f"heads of {self.head_dim} elements turn {self.rope.dim} of them, which are no pairs.")
        if self.windows and len(self.windows) != self.num_layers:
            raise ConfigError(f"there are {len(self.windows)} windows for {self.num_layers} layers.")

    @property
    def reduced(self) -> bool:
        """Whether it lacks some of the target's tokens."""
        return self.draft_vocab_size != self.vocab_size

    def sight(self, layer: int) -> Sight:
        """How far the rows of a layer see."""
        return ((self.windows[layer] if self.windows else 0) or None, None)


class RmsNorm(nn.Module):
    """RMS norm over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> the same, in the dtype of ``x``."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Projections of a layer's attention; who attends to whom is the caller's affair.

    Args:
        width: elements of a row that it reads.
        output_bias: whether what it adds to the residual stream has a bias.
        head_norm_eps: of norms of queries and keys, as Qwen 3's; None: it has none.
    """

    q_norm: RmsNorm
    k_norm: RmsNorm
    attention_sink_bias: nn.Parameter
    """[head] scores that no key has, of heads that have such."""

    def __init__(
        self,
        width: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        output_bias: bool = False,
        head_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.norms_heads = head_norm_eps is not None
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        q, kv = num_heads * head_dim, num_kv_heads * head_dim
        self.q_proj = nn.Linear(width, q, bias=bias)
        self.k_proj = nn.Linear(width, kv, bias=bias)
        self.v_proj = nn.Linear(width, kv, bias=bias)
        self.o_proj = nn.Linear(q, hidden_size, bias=output_bias)
        if head_norm_eps is not None:
            self.q_norm = RmsNorm(head_dim, head_norm_eps)
            self.k_norm = RmsNorm(head_dim, head_norm_eps)

    def qkv(self, x: Tensor) -> Tensor:
        """[..., width] -> queries, keys and values side by side."""
        return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)

    def parts(self, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., head of all three, head_dim] -> queries, keys and values, the first two normed and not yet rotated."""
        q, k, v = torch.split(heads, [self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=-2)
        return (self.q_norm(q), self.k_norm(k), v) if self.norms_heads else (q, k, v)


class SiluMlp(nn.Module):
    """SiLU-gated, as Llama's."""

    def __init__(self, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, mlp_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, mlp_size, bias=False)
        self.down_proj = nn.Linear(mlp_size, hidden_size, bias=False)

    def up(self, x: Tensor) -> Tensor:
        """[..., hidden] -> gate and what it lets through, side by side."""
        return torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)


def side_by_side(*layers: nn.Linear) -> LinearWeights:
    """The weights of layers that read the same rows, as one matrix."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return LinearWeights(torch.cat(weights), torch.cat(biases) if biases else None)


class HeadLayer(nn.Module):
    """The parts of a head's layer, as ``HeadLayerParts`` too. Each kind of head makes its own; files name them so."""

    input_layernorm: RmsNorm
    self_attn: Attention
    post_attention_layernorm: RmsNorm
    mlp: SiluMlp

    @property
    def input_norm(self) -> Operation:
        return self.input_layernorm

    @property
    def qkv(self) -> Operation:
        return self.self_attn.qkv

    @property
    def output(self) -> Operation:
        return self.self_attn.o_proj

    @property
    def mlp_norm(self) -> Operation:
        return self.post_attention_layernorm

    @property
    def up(self) -> Operation:
        return self.mlp.up

    @property
    def down(self) -> Operation:
        return self.mlp.down_proj

    def fused(self) -> tuple[LinearWeights, LinearWeights, LinearWeights, LinearWeights]:
        """The matrices as a pass multiplies them: queries with keys and values, output, gate with up, down."""
        attention, mlp = self.self_attn, self.mlp
        return (
            side_by_side(attention.q_proj, attention.k_proj, attention.v_proj),
            LinearWeights(attention.o_proj.weight, attention.o_proj.bias),
            side_by_side(mlp.gate_proj, mlp.up_proj),
            LinearWeights(mlp.down_proj.weight),
        )


def begin_randomly(module: nn.Module) -> None:
    """For training: matrices normal with standard deviation 0.02, biases 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
