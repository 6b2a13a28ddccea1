"""What a decoder looks like: one frozen description for every family.

A family file (``families.py``) turns a Hugging Face ``config.json`` or GGUF metadata into a ``ModelConfig``;
the decoders (torch and native) read nothing else. A feature a family lacks is off by default, so that a new
family costs one function and no new decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headstart.models.encoder_decoder import EncoderConfig

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    ``theta`` is the base; ``dim`` the number of rotated dimensions of a head (the first ones, rotate-half
    layout); ``scaling`` the ``rope_scaling`` entry in Hugging Face form (``{"rope_type": "llama3", ...}``, "yarn" with
    all of its entries but ``mscale``, "longrope" without its factors, or ``{"rope_type": "linear", "factor": ...}``),
    None for plain; ``factors`` [dim / 2] divide the frequencies ("longrope"), empty: nothing does.
    """

    theta: float
    dim: int
    scaling: dict[str, float | int | str] | None = None
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from layer to layer.

    ``window``: sliding-window size in tokens, the row's own included, None for full attention.
    ``rope``: index into ``ModelConfig.ropes``, None for a layer without positions (SmolLM3, GPT-2).
    """

    window: int | None = None
    rope: int | None = 0


@dataclass(frozen=True)
class ModelConfig:
    """A transformer's decoder, and its encoder where it has one. Sizes are in elements, lengths in tokens."""

    family: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    max_positions: int
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...] = ()
    norm: NormKind = "rms"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0
    """Added to every norm weight (Gemma stores w - 1)."""
    activation: Activation = "silu"
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the attention's output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head of q and k before rotation (Qwen3, Gemma 3)."""
    parallel_residual: bool = False
    """x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX)."""
    post_norms: bool = False
    """Norms on the attention's and the MLP's output too (Gemma 2 and 3)."""
    learned_positions: bool = False
    """A table of position embeddings added to the input (GPT-2)."""
    attention_scale: float | None = None
    """Factor on q.k; None means 1/sqrt(head_dim)."""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_divisor: float = 1.0
    """Put into the final norm's weight when a checkpoint is read, so that no decoder sees it (Granite)."""
    embedding_scale: float = 1.0
    tap_scale: float = 1.0
    """Taps of layers show the residual stream times this."""
    tied_head: bool = True
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    encoder: EncoderConfig | None = None
    """None: it is a decoder alone."""
    name: str = field(default="", compare=False)
    """Where it came from, for messages."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        return self.attention_scale if self.attention_scale is not None else self.head_dim**-0.5
