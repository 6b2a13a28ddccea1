"""Llama and its close kin: Llama 2 and 3, SmolLM2, Mistral, Qwen 2 and 3, SmolLM3.

Sources: the configuration and modelling files of transformers (models/llama, mistral, qwen2, qwen3, smollm3);
for GGUF llama.cpp's converter, which interleaves the rotary halves of q and k for llama and smollm3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from headstart.models.config import (
    Activation,
    AttentionConfig,
    HeadNorms,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    RopeConfig,
)
from headstart.models.families.base import CACHE_SCALES, ROTARY_BUFFERS, Family, Gguf, Parts, TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYOUT
from headstart.models.families.rope import partial_rope_of, rope_of

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}


FULL = LayerConfig()
"""A layer that sees everything."""
UNROTATED = LayerConfig(rope=None)
GATED = MlpConfig()
LAYER_NORMS = NormsConfig("layer")
UNGATED_BIASED = MlpConfig(gated=False, bias=True)
BIASED = AttentionConfig(qkv_bias=True, output_bias=True)


def activation(fields: Fields, key: str, default: str) -> Activation:
    """The MLP's activation by its name in a configuration.

    Raises:
        CheckpointError: it is not supported.
    """
    name = fields.text(key, default)
    if name not in ACTIVATIONS:
        raise fields.unsupported(key, name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def windows_of(fields: Fields, num_layers: int, window: int | None, sliding: list[bool]) -> list[int | None]:
    """[layer] sliding window. ``layer_types`` decides where it is given, else the family's rule ``sliding``."""
    kinds = fields.kinds("layer_types", num_layers, ("full_attention", "sliding_attention"))
    if kinds is not None:
        sliding = [kind == "sliding_attention" for kind in kinds]
    if window is None and kinds is not None and any(sliding):
        raise fields.missing("sliding_window")
    return [window if is_sliding else None for is_sliding in sliding]


def windowed(
    fields: Fields,
    config: ModelConfig,
    window: int | None,
    slides: Callable[[int], bool],
    full: int | None = 0,
    within: int | None = 0,
) -> ModelConfig:
    """The model with windows in some layers, as ``windows_of`` has it; ``full`` and ``within``: the rotations of layers
    that see everything, and of the others."""
    sliding = [window is not None and slides(index) for index in range(config.num_layers)]
    windows = windows_of(fields, config.num_layers, window, sliding)
    return replace(config, layers=tuple(LayerConfig(each, full if each is None else within) for each in windows))


def base_of(
    fields: Fields,
    family: str = "",
    tied: bool = False,
    default_theta: float = 10_000.0,
    default_head_dim: int | None = None,
    rope: RopeConfig | None = None,
    *,
    eps: str = "rms_norm_eps",
    default_eps: float = 1e-6,
    activation_key: str = "hidden_act",
    default_activation: str | None = "silu",
    share: float | None = None,
    layer: LayerConfig = FULL,
    **parts: Unpack[Parts],
) -> ModelConfig:
    """What RMS-normed, gated decoders share, with full attention in every layer.

    ``tied``, ``default_theta``, ``default_head_dim`` (None: hidden size / heads), ``default_eps``,
    ``default_activation`` (None: it is no entry) and ``share`` (of a head's dimensions that are rotated, None: all of
    them, always) are the family's defaults; ``family``: its name, where it is not read by that; ``eps`` and
    ``activation_key``: what entries are called; ``rope``: where the family reads it in a way of its own; ``layer``:
    what its layers are; ``parts``: what else it has, but for the epsilon, the activation and whether the head is tied,
    which are read.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", default_head_dim or hidden // heads)
    if fields.of_gguf and fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.bad("attention.value_length", fields.get("attention.value_length"), f"the key length, {head_dim}")
    num_layers = fields.integer("num_hidden_layers", maximum=4096)
    if rope is None and share is not None:
        rope = partial_rope_of(fields, head_dim, share, default_theta)
    if "ropes" not in parts:
        parts["ropes"] = (rope or rope_of(fields, head_dim, default_theta),)
    mlp = parts.pop("mlp", MlpConfig())
    if default_activation is not None:
        mlp = replace(mlp, activation=activation(fields, activation_key, default_activation))
    config = ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        mlp_size=fields.integer("intermediate_size"),
        max_positions=fields.integer("max_position_embeddings", maximum=MAX_POSITIONS),
        layers=(layer,) * num_layers,
        norms=replace(
            parts.pop("norms", NormsConfig()), eps=fields.number(eps, None if fields.of_gguf else default_eps)
        ),
        mlp=mlp,
        head=replace(parts.pop("head", OutputHeadConfig()), tied=fields.flag("tie_word_embeddings", tied)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )
    return replace(config, **parts)


def biased(fields: Fields, default: bool = False, key: str = "attention_bias") -> AttentionConfig:
    """Attention whose projections all have biases where the entry says so."""
    bias = fields.flag(key, default)
    return AttentionConfig(qkv_bias=bias, output_bias=bias)


def mlp_of(fields: Fields, default: bool = False, gated: bool = True) -> MlpConfig:
    """An MLP whose biases are an entry of their own."""
    return MlpConfig(gated=gated, bias=fields.flag("mlp_bias", default))


def _llama(fields: Fields) -> ModelConfig:
    # GGUF has one architecture for Llama and Mistral.
    layer = LayerConfig(fields.optional_integer("sliding_window")) if fields.of_gguf else FULL
    return base_of(fields, layer=layer, attention=biased(fields), mlp=mlp_of(fields))


def _mistral(fields: Fields) -> ModelConfig:
    # Absent means the default, null means none: Mistral 7B 0.1 slides, later ones say null.
    window = fields.optional_integer("sliding_window") if fields.has("sliding_window") else 4096
    return base_of(fields, layer=LayerConfig(window))


def qwen_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The model with Qwen's windows, from one layer on."""
    window = fields.integer("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 28, minimum=0)
    return windowed(fields, config, window, lambda index: index >= first)


def _qwen2(fields: Fields) -> ModelConfig:
    return qwen_windows(fields, base_of(fields, attention=AttentionConfig(qkv_bias=True)))


def _mimo(fields: Fields) -> ModelConfig:
    """Qwen 2 with multi-token modules."""
    attention = AttentionConfig(qkv_bias=fields.flag("attention_bias", True))
    return replace(_qwen2(fields), attention=attention)


def _qwen3(fields: Fields) -> ModelConfig:
    attention = replace(biased(fields), qk_norm=HeadNorms())
    return qwen_windows(fields, base_of(fields, default_head_dim=128, attention=attention))


def _smollm3(fields: Fields) -> ModelConfig:
    parts: Parts = {"attention": biased(fields), "mlp": mlp_of(fields)}
    config = base_of(fields, tied=True, default_theta=2_000_000.0, **parts)
    rotates = fields.get("no_rope_layers")
    if rotates is None:
        interval = fields.integer("no_rope_layer_interval", 4)
        rotates = [int((i + 1) % interval != 0) for i in range(config.num_layers)]
    elif not isinstance(rotates, list) or len(rotates) < config.num_layers or any(r not in (0, 1) for r in rotates):
        raise fields.bad("no_rope_layers", rotates, f"{config.num_layers} entries, each 0 or 1")
    window = fields.optional_integer("sliding_window") if fields.flag("use_sliding_window", False) else None
    sliding = [window is not None and not r for r in rotates[: config.num_layers]]
    windows = windows_of(fields, config.num_layers, window, sliding)
    layers = tuple(LayerConfig(w, 0 if r else None) for w, r in zip(windows, rotates, strict=False))
    return replace(config, layers=layers)


def halves(tensor: Tensor, config: ModelConfig) -> Tensor:
    """[heads * head_dim, ...] with interleaved rotary pairs (2j, 2j + 1) -> pairs (j, j + dim / 2) of the ``dim``
    dimensions that are rotated."""
    return in_halves(tensor, config.head_dim, config.ropes[0].dim)


def in_halves(tensor: Tensor, size: int, dim: int) -> Tensor:
    """The same for heads of ``size``, the first ``dim`` of which are rotated."""
    heads = tensor.reshape(len(tensor) // size, size, -1)
    rotated = heads[:, :dim].reshape(len(heads), dim // 2, 2, -1).transpose(1, 2).flatten(1, 2)
    return torch.cat((rotated, heads[:, dim:]), dim=1).reshape(tensor.shape)


HF_LAYER = {
    "attention_norm": "layers.{i}.input_layernorm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "output": "layers.{i}.self_attn.o_proj",
    "q_norm": "layers.{i}.self_attn.q_norm",
    "k_norm": "layers.{i}.self_attn.k_norm",
    "mlp_norm": "layers.{i}.post_attention_layernorm",
    "gate": "layers.{i}.mlp.gate_proj",
    "up": "layers.{i}.mlp.up_proj",
    "down": "layers.{i}.mlp.down_proj",
}
HF_LAYOUT = TensorLayout(
    prefix="model.",
    embedding="embed_tokens",
    final_norm="norm",
    head="lm_head",
    layer=HF_LAYER,
    ignored=(ROTARY_BUFFERS, *CACHE_SCALES),
)
GGUF_INTERLEAVED = replace(GGUF_LAYOUT, convert={"q": halves, "k": halves})
GGUF_MIXED_INTERLEAVED = replace(GGUF_INTERLEAVED, beyond=True)

FAMILIES = (
    Family("llama", _llama, HF_LAYOUT, Gguf("llama", GGUF_INTERLEAVED)),
    Family("mistral", _mistral, HF_LAYOUT, Gguf("llama", GGUF_INTERLEAVED)),
    Family("qwen2", _qwen2, HF_LAYOUT, Gguf("qwen2", GGUF_LAYOUT)),
    Family("mimo", _mimo, HF_LAYOUT),
    Family("qwen3", _qwen3, HF_LAYOUT, Gguf("qwen3", GGUF_LAYOUT)),
    Family("smollm3", _smollm3, HF_LAYOUT, Gguf("smollm3", GGUF_INTERLEAVED)),
)
