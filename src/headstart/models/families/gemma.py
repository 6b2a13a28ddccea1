"""Gemma 1 and 2, VaultGemma, the text form of Gemma 3, and the text of the form that sees.

Sources: the configuration and modelling files of transformers (models/gemma to gemma3, vaultgemma); for GGUF what
llama.cpp keeps as constants (src/llama-model.cpp: window patterns, the 27B models' attention scale, Gemma 3's local
rotation) and its converter, which adds 1 to every norm's weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    HeadNorms,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    OutputHeadConfig,
    RopeConfig,
)
from headstart.models.families.base import Family, Parts, TensorLayout
from headstart.models.families.fields import Fields
from headstart.models.families.llama import (
    GGUF_LAYER,
    GGUF_LAYOUT,
    HF_LAYER,
    HF_LAYOUT,
    base_from_gguf,
    base_from_hf,
    biased,
    windows_from_hf,
)
from headstart.models.families.rope import rope_from_hf

_LOCAL_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0


def _gemma(config: ModelConfig, windows: list[int | None], post_norms: bool = True) -> ModelConfig:
    """What all generations add to the base."""
    return replace(
        config,
        layers=tuple(LayerConfig(window) for window in windows),
        norms=replace(config.norms, offset=1.0, post=post_norms),
        # Rounded like the embedding itself, as the models were trained with.
        embedding=EmbeddingConfig(torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16).item()),
    )


def _from_hf(
    fields: Fields,
    family: str,
    pattern: int,
    default_theta: float,
    softcap: float | None = None,
    **parts: Unpack[Parts],
) -> ModelConfig:
    """``pattern``: every ``pattern``-th layer has full attention, where ``layer_types`` does not say."""
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    config = base_from_hf(
        fields,
        family,
        tied=True,
        default_theta=default_theta,
        default_head_dim=256,
        activation_key="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        **parts,
    )
    sliding = [(i + 1) % pattern != 0 for i in range(config.num_layers)]
    windows = windows_from_hf(fields, config.num_layers, fields.integer("sliding_window", 4096), sliding)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    return _gemma(replace(config, attention=replace(biased(fields), scale=scale, softcap=softcap)), windows)


def _gemma1(fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    # Files of the first release say "gelu" and mean its approximation.
    said = fields.text("hidden_act", "gelu_pytorch_tanh")
    config = base_from_hf(
        fields.with_entries(hidden_act="gelu_pytorch_tanh" if said == "gelu" else said),
        "gemma",
        tied=True,
        default_head_dim=256,
        attention=biased(fields),
    )
    return _gemma(config, [None] * config.num_layers, post_norms=False)


def _vaultgemma(fields: Fields) -> ModelConfig:
    config = _gemma2(fields)
    return replace(config, family="vaultgemma", norms=replace(config.norms, post=False))


def _gemma1_gguf(fields: Fields) -> ModelConfig:
    config = base_from_gguf(fields, "gemma", mlp=MlpConfig("gelu_tanh"))
    return _gemma(config, [None] * config.num_layers, post_norms=False)


def _softcap(fields: Fields, key: str, default: float) -> float | None:
    """Absent means the default, null means none."""
    return fields.optional_number(key) if fields.has(key) else default


def _gemma2(fields: Fields) -> ModelConfig:
    return _from_hf(
        fields,
        "gemma2",
        pattern=2,
        default_theta=10_000.0,
        softcap=_softcap(fields, "attn_logit_softcapping", 50.0),
        head=OutputHeadConfig(softcap=_softcap(fields, "final_logit_softcapping", 30.0)),
    )


def _gemma3(fields: Fields) -> ModelConfig:
    pattern = fields.integer("sliding_window_pattern", 6)
    head = OutputHeadConfig(softcap=fields.optional_number("final_logit_softcapping"))
    config = _from_hf(fields, "gemma3", pattern, _GLOBAL_THETA, head=head)
    full = rope_from_hf(fields, config.head_dim, _GLOBAL_THETA, "full_attention")
    local = rope_from_hf(fields, config.head_dim, _LOCAL_THETA, "sliding_attention", "rope_local_base_freq")
    return _normed(_with_local_rope(config, full, local))


def _normed(config: ModelConfig) -> ModelConfig:
    return replace(config, attention=replace(config.attention, qk_norm=HeadNorms()))


_SEEING_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
"""transformers' own: released files leave out what equals them."""


def _gemma3_seeing(fields: Fields) -> ModelConfig:
    """Gemma 3 from 4B on, whose files hold an encoder of images too; it is left out."""
    text = fields.within("text_config")
    if text is None:
        raise fields.missing("text_config")
    entries = _SEEING_DEFAULTS | {key: value for key, value in text.entries.items() if value is not None}
    if fields.get("eos_token_id") is not None:
        entries["eos_token_id"] = fields.get("eos_token_id")
    return replace(_gemma3(Fields(entries, text.source)), family="gemma3_seeing")


def _with_local_rope(config: ModelConfig, full: RopeConfig, local: RopeConfig) -> ModelConfig:
    layers = tuple(replace(layer, rope=0 if layer.window is None else 1) for layer in config.layers)
    return replace(config, layers=layers, ropes=(full, local))


def _from_gguf(
    fields: Fields, family: str, pattern: int, largest: int, softcap: float | None, head: OutputHeadConfig
) -> ModelConfig:
    """``largest``: layers of the 27B model, whose attention scale is 1 / sqrt(hidden / heads)."""
    config = base_from_gguf(fields, family, mlp=MlpConfig("gelu_tanh"), head=head)
    window = fields.integer("attention.sliding_window", 0, minimum=0) or None
    windows = [window if (i + 1) % pattern else None for i in range(config.num_layers)]
    size = config.hidden_size // config.num_heads if config.num_layers == largest else config.head_dim
    return _gemma(replace(config, attention=AttentionConfig(scale=size**-0.5, softcap=softcap)), windows)


def _gemma2_gguf(fields: Fields) -> ModelConfig:
    head = OutputHeadConfig(softcap=fields.number("final_logit_softcapping", 30.0))
    return _from_gguf(fields, "gemma2", 2, 46, fields.number("attn_logit_softcapping", 50.0), head)


def _gemma3_gguf(fields: Fields) -> ModelConfig:
    head = OutputHeadConfig(softcap=fields.optional_number("final_logit_softcapping"))
    config = _from_gguf(fields, "gemma3", 6, 62, None, head)
    local = RopeConfig(fields.number("rope.freq_base_swa", _LOCAL_THETA), config.head_dim)
    return _normed(_with_local_rope(config, config.ropes[0], local))


def _minus_one(weight: Tensor, _: ModelConfig) -> Tensor:
    return weight - 1


_NORMS = (
    "attention_norm",
    "q_norm",
    "k_norm",
    "attention_post_norm",
    "mlp_norm",
    "mlp_post_norm",
    "final_norm",
)
_HF_LAYOUT = replace(
    HF_LAYOUT,
    layer={
        **HF_LAYER,
        "attention_post_norm": "layers.{i}.post_attention_layernorm",
        "mlp_norm": "layers.{i}.pre_feedforward_layernorm",
        "mlp_post_norm": "layers.{i}.post_feedforward_layernorm",
    },
)
_SEEING_LAYOUT = replace(
    _HF_LAYOUT,
    prefix="language_model.model.",
    head="language_model.lm_head",
    ignored=(*_HF_LAYOUT.ignored, r"vision_tower\..*", r"multi_modal_projector\..*"),
)
_GGUF_LAYOUT: TensorLayout = replace(
    GGUF_LAYOUT,
    layer={
        **GGUF_LAYER,
        "attention_post_norm": "blk.{i}.post_attention_norm",
        "mlp_post_norm": "blk.{i}.post_ffw_norm",
    },
    convert=dict.fromkeys(_NORMS, _minus_one),
)

_VAULT_LAYOUT = replace(HF_LAYOUT, layer={**HF_LAYER, "mlp_norm": "layers.{i}.pre_feedforward_layernorm"})
_FIRST_GGUF_LAYOUT = replace(GGUF_LAYOUT, convert=dict.fromkeys(_NORMS, _minus_one))

FAMILIES = (
    Family("gemma", "gemma", "gemma", _gemma1, _gemma1_gguf, HF_LAYOUT, _FIRST_GGUF_LAYOUT),
    Family("vaultgemma", "vaultgemma", "", _vaultgemma, None, _VAULT_LAYOUT, None),
    Family("gemma2", "gemma2", "gemma2", _gemma2, _gemma2_gguf, _HF_LAYOUT, _GGUF_LAYOUT),
    Family("gemma3", "gemma3_text", "gemma3", _gemma3, _gemma3_gguf, _HF_LAYOUT, _GGUF_LAYOUT),
    Family("gemma3_seeing", "gemma3", "gemma3", _gemma3_seeing, _gemma3_gguf, _SEEING_LAYOUT, _GGUF_LAYOUT),
)
