"""Llama and its close kin: Llama 2 and 3, SmolLM2, Mistral, Qwen 2 and 3, SmolLM3.

Sources: the configuration and modelling files of transformers (models/llama, mistral, qwen2, qwen3, smollm3);
for GGUF llama.cpp's converter, which interleaves the rotary halves of q and k for llama and smollm3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from headstart.errors import UnsupportedModelError
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
from headstart.models.families.base import CACHE_SCALES, ROTARY_BUFFERS, Family, Parts, TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.rope import partial_rope_from_hf, rope_from_gguf, rope_from_hf

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
_NOPE_INTERVAL = 4
"""SmolLM3 leaves every fourth layer without positions; GGUF files do not say so (llama.cpp has it as a constant)."""


FULL = LayerConfig()
"""A layer that sees everything."""


def activation(fields: Fields, key: str, default: str) -> Activation:
    """The MLP's activation by its name in a configuration.

    Raises:
        CheckpointError: it is not supported.
    """
    name = fields.text(key, default)
    if name not in ACTIVATIONS:
        raise fields.unsupported(key, name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def refuse_experts(fields: Fields, key: str, default: int) -> None:
    """Stop where the entry says that there are any; ``default``: their number where it is absent."""
    if fields.integer(key, default, minimum=0) > 0:
        raise UnsupportedModelError(
            f"{fields.source} is a mixture of experts, which is not supported; use another model."
        )


def windows_from_hf(fields: Fields, num_layers: int, window: int | None, sliding: list[bool]) -> list[int | None]:
    """[layer] sliding window. ``layer_types`` decides where it is given, else the family's rule ``sliding``."""
    kinds = fields.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
            raise fields.bad("layer_types", kinds, f"{num_layers} entries, each {' or '.join(known)}")
        sliding = [kind == "sliding_attention" for kind in kinds]
    if window is None and kinds is not None and any(sliding):
        raise fields.missing("sliding_window")
    return [window if is_sliding else None for is_sliding in sliding]


def base_from_hf(
    fields: Fields,
    family: str,
    tied: bool,
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
    them, always) are the family's defaults; ``eps`` and ``activation_key``: what entries are called; ``rope``: where
    the family reads it in a way of its own; ``layer``: what its layers are; ``parts``: what else it has, but for the
    epsilon, the activation and whether the head is tied, which are read.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", default_head_dim or hidden // heads)
    num_layers = fields.integer("num_hidden_layers", maximum=4096)
    if rope is None and share is not None:
        rope = partial_rope_from_hf(fields, head_dim, share, default_theta)
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
        ropes=(rope or rope_from_hf(fields, head_dim, default_theta),),
        norms=replace(parts.pop("norms", NormsConfig()), eps=fields.number(eps, default_eps)),
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
    return base_from_hf(fields, "llama", tied=False, attention=biased(fields), mlp=mlp_of(fields))


def _mistral(fields: Fields) -> ModelConfig:
    # Absent means the default, null means none: Mistral 7B 0.1 slides, later ones say null.
    window = fields.optional_integer("sliding_window") if fields.has("sliding_window") else 4096
    return base_from_hf(fields, "mistral", tied=False, layer=LayerConfig(window))


def qwen_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The model with Qwen's windows, from one layer on."""
    window = fields.integer("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 28, minimum=0)
    sliding = [window is not None and i >= first for i in range(config.num_layers)]
    windows = windows_from_hf(fields, config.num_layers, window, sliding)
    return replace(config, layers=tuple(LayerConfig(window) for window in windows))


def _qwen2(fields: Fields) -> ModelConfig:
    return qwen_windows(fields, base_from_hf(fields, "qwen2", tied=False, attention=AttentionConfig(qkv_bias=True)))


def _mimo(fields: Fields) -> ModelConfig:
    """Qwen 2 with multi-token modules."""
    attention = AttentionConfig(qkv_bias=fields.flag("attention_bias", True))
    return replace(_qwen2(fields), family="mimo", attention=attention)


def _qwen3(fields: Fields) -> ModelConfig:
    attention = replace(biased(fields), qk_norm=HeadNorms())
    return qwen_windows(fields, base_from_hf(fields, "qwen3", tied=False, default_head_dim=128, attention=attention))


def _smollm3(fields: Fields) -> ModelConfig:
    parts: Parts = {"attention": biased(fields), "mlp": mlp_of(fields)}
    config = base_from_hf(fields, "smollm3", tied=True, default_theta=2_000_000.0, **parts)
    rotates = fields.get("no_rope_layers")
    if rotates is None:
        interval = fields.integer("no_rope_layer_interval", _NOPE_INTERVAL)
        rotates = [int((i + 1) % interval != 0) for i in range(config.num_layers)]
    elif not isinstance(rotates, list) or len(rotates) < config.num_layers or any(r not in (0, 1) for r in rotates):
        raise fields.bad("no_rope_layers", rotates, f"{config.num_layers} entries, each 0 or 1")
    window = fields.optional_integer("sliding_window") if fields.flag("use_sliding_window", False) else None
    sliding = [window is not None and not r for r in rotates[: config.num_layers]]
    windows = windows_from_hf(fields, config.num_layers, window, sliding)
    layers = tuple(LayerConfig(w, 0 if r else None) for w, r in zip(windows, rotates, strict=False))
    return replace(config, layers=layers)


def base_from_gguf(
    fields: Fields,
    family: str,
    default_theta: float = 10_000.0,
    rope: RopeConfig | None = None,
    *,
    eps: str = "attention.layer_norm_rms_epsilon",
    experts: bool = False,
    layer: LayerConfig = FULL,
    **parts: Unpack[Parts],
) -> ModelConfig:
    """What the GGUF files of RMS-normed, gated decoders share, with full attention in every layer; arguments as
    ``base_from_hf``'s; ``experts``: there may be some."""
    if not experts:
        refuse_experts(fields, "expert_count", 0)
    hidden = fields.integer("embedding_length")
    heads = fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.bad("attention.value_length", fields.get("attention.value_length"), f"the key length, {head_dim}")
    if rope is None and fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.bad("rope.dimension_count", fields.get("rope.dimension_count"), f"the head's size, {head_dim}")
    num_layers = fields.integer("block_count", maximum=4096)
    config = ModelConfig(
        family=family,
        vocab_size=vocab_size_from_gguf(fields),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_size=fields.integer("feed_forward_length"),
        max_positions=fields.integer("context_length", maximum=MAX_POSITIONS),
        layers=(layer,) * num_layers,
        ropes=(rope or rope_from_gguf(fields, head_dim, default_theta),),
        norms=replace(parts.pop("norms", NormsConfig()), eps=fields.number(eps)),
        **token_ids_from_gguf(fields),
    )
    return replace(config, **parts)


def vocab_size_from_gguf(fields: Fields) -> int:
    """The entry ``vocab_size`` where there is one, else the number of the tokenizer's tokens.

    Raises:
        CheckpointError: there is neither.
    """
    size = fields.optional_integer("vocab_size")
    if size is not None:
        return size
    tokens = fields.entries.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise fields.missing("vocab_size")
    return len(tokens)


def token_ids_from_gguf(fields: Fields) -> dict[str, Any]:
    """``bos_token_id`` and ``eos_token_ids``; the end of a turn ends a sequence too, as in llama.cpp."""
    tokenizer = Fields(fields.entries, fields.source, "tokenizer.ggml.")
    ends = (tokenizer.optional_integer(key, minimum=0) for key in ("eos_token_id", "eot_token_id"))
    return {
        "bos_token_id": tokenizer.optional_integer("bos_token_id", minimum=0),
        "eos_token_ids": tuple(dict.fromkeys(end for end in ends if end is not None)),
    }


def _llama_gguf(fields: Fields) -> ModelConfig:
    window = fields.integer("attention.sliding_window", 0, minimum=0) or None
    return base_from_gguf(fields, "llama", layer=LayerConfig(window))


def _qwen2_gguf(fields: Fields) -> ModelConfig:
    return base_from_gguf(fields, "qwen2", attention=AttentionConfig(qkv_bias=True))


def _qwen3_gguf(fields: Fields) -> ModelConfig:
    return base_from_gguf(fields, "qwen3", attention=AttentionConfig(qk_norm=HeadNorms()))


def _smollm3_gguf(fields: Fields) -> ModelConfig:
    config = base_from_gguf(fields, "smollm3", default_theta=2_000_000.0)
    layers = (LayerConfig(rope=0 if (i + 1) % _NOPE_INTERVAL else None) for i in range(config.num_layers))
    return replace(config, layers=tuple(layers))


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
GGUF_LAYER = {
    "attention_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "output": "blk.{i}.attn_output",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "mlp_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
}
GGUF_LAYOUT = TensorLayout(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layer=GGUF_LAYER,
    rope_factors="rope_freqs.weight",
    ignored=(r"blk\.\d+\.attn_rot_embd\.weight",),
)
GGUF_INTERLEAVED = replace(GGUF_LAYOUT, convert={"q": halves, "k": halves})

FAMILIES = (
    Family("llama", "llama", "llama", _llama, _llama_gguf, HF_LAYOUT, GGUF_INTERLEAVED),
    Family("mistral", "mistral", "llama", _mistral, _llama_gguf, HF_LAYOUT, GGUF_INTERLEAVED),
    Family("qwen2", "qwen2", "qwen2", _qwen2, _qwen2_gguf, HF_LAYOUT, GGUF_LAYOUT),
    Family("mimo", "mimo", "", _mimo, None, replace(HF_LAYOUT, ignored=(*HF_LAYOUT.ignored, r"mtp_layers\..*")), None),
    Family("qwen3", "qwen3", "qwen3", _qwen3, _qwen3_gguf, HF_LAYOUT, GGUF_LAYOUT),
    Family("smollm3", "smollm3", "smollm3", _smollm3, _smollm3_gguf, HF_LAYOUT, GGUF_INTERLEAVED),
)
