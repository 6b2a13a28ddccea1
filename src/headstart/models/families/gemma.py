"""Gemma 1 and 2, VaultGemma, the text form of Gemma 3, and the text of the form that sees.

Sources: the configuration and modelling files of transformers (models/gemma to gemma3, vaultgemma); for GGUF what
llama.cpp keeps as constants (src/llama-model.cpp: window patterns, the 27B models' attention scale, Gemma 3's local
rotation) and its converter, which adds 1 to every norm's weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import torch

from headstart.models.config import EmbeddingConfig, HeadNorms, ModelConfig, OutputHeadConfig, RopeConfig
from headstart.models.families.base import Family, Gguf, Parts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYOUT, minus_one
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, biased, windowed
from headstart.models.families.rope import rope_of

_LOCAL_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0


def _gemma(config: ModelConfig, post_norms: bool = True) -> ModelConfig:
    """What all generations add to the base."""
    return replace(
        config,
        norms=replace(config.norms, offset=1.0, post=post_norms),
        # Rounded like the embedding itself, as the models were trained with.
        embedding=EmbeddingConfig(torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16).item()),
    )


def _later(
    fields: Fields,
    pattern: int,
    default_theta: float,
    softcap: float | None = None,
    **parts: Unpack[Parts],
) -> ModelConfig:
    """``pattern``: every ``pattern``-th layer has full attention, where ``layer_types`` does not say."""
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    config = base_of(
        fields,
        tied=True,
        default_theta=default_theta,
        default_head_dim=256,
        activation_key="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        **parts,
    )
    # A GGUF file of Gemma 3 without one has no windows.
    window = fields.optional_integer("sliding_window") if fields.of_gguf else fields.integer("sliding_window", 4096)
    config = windowed(fields, config, window, lambda index: (index + 1) % pattern != 0)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    return _gemma(replace(config, attention=replace(biased(fields), scale=scale, softcap=softcap)))


def _gemma1(fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", True, "all", because="which no decoder can have")
    # Files of the first release say "gelu" and mean its approximation.
    said = fields.text("hidden_act", "gelu_pytorch_tanh")
    config = base_of(
        fields.with_entries(hidden_act="gelu_pytorch_tanh" if said == "gelu" else said),
        tied=True,
        default_head_dim=256,
        attention=biased(fields),
    )
    return _gemma(config, post_norms=False)


def _vaultgemma(fields: Fields) -> ModelConfig:
    config = _gemma2(fields)
    return replace(config, norms=replace(config.norms, post=False))


def _softcap(fields: Fields, key: str, default: float) -> float | None:
    """Absent means the default, null means none."""
    return fields.optional_number(key) if fields.has(key) else default


def _gemma2(fields: Fields) -> ModelConfig:
    return _later(
        fields,
        pattern=2,
        default_theta=10_000.0,
        softcap=_softcap(fields, "attn_logit_softcapping", 50.0),
        head=OutputHeadConfig(softcap=_softcap(fields, "final_logit_softcapping", 30.0)),
    )


def _gemma3(fields: Fields) -> ModelConfig:
    pattern = fields.integer("sliding_window_pattern", 6)
    head = OutputHeadConfig(softcap=fields.optional_number("final_logit_softcapping"))
    config = _later(fields, pattern, _GLOBAL_THETA, head=head)
    full = rope_of(fields, config.head_dim, _GLOBAL_THETA, "full_attention")
    local = rope_of(fields, config.head_dim, _LOCAL_THETA, "sliding_attention", "rope_local_base_freq")
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
    return _gemma3(Fields(entries, text.source))


def _with_local_rope(config: ModelConfig, full: RopeConfig, local: RopeConfig) -> ModelConfig:
    layers = tuple(replace(layer, rope=0 if layer.window is None else 1) for layer in config.layers)
    return replace(config, layers=layers, ropes=(full, local))


_GGUF_DEFAULTS = {"rope_theta": 10_000.0, "rope.freq_base_swa": _LOCAL_THETA}
_LARGEST = (46, 62)
"""Layers of the 27B models, whose attention scale is 1 / sqrt(hidden / heads)."""


def _computed(fields: Fields) -> dict[str, Any]:
    sizes = fields.integer("hidden_size") // fields.integer("num_attention_heads"), fields.optional_integer("head_dim")
    size = sizes[0] if fields.integer("num_hidden_layers") in _LARGEST else sizes[1] or sizes[0]
    return {"query_pre_attn_scalar": size}


_NORMS = ("attention_norm", "q_norm", "k_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm", "final_norm")
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
_GGUF_LAYOUT = replace(GGUF_LAYOUT, convert=dict.fromkeys(_NORMS, minus_one))
_VAULT_LAYOUT = replace(HF_LAYOUT, layer={**HF_LAYER, "mlp_norm": "layers.{i}.pre_feedforward_layernorm"})

_GEMMA3_GGUF = Gguf("gemma3", _GGUF_LAYOUT, defaults=_GGUF_DEFAULTS, computed=_computed, read=_gemma3)

FAMILIES = (
    Family("gemma", _gemma1, HF_LAYOUT, Gguf("gemma", _GGUF_LAYOUT)),
    Family("vaultgemma", _vaultgemma, _VAULT_LAYOUT),
    Family(
        "gemma2",
        _gemma2,
        _HF_LAYOUT,
        Gguf("gemma2", _GGUF_LAYOUT, defaults={"sliding_window": 4096}, computed=_computed),
    ),
    Family("gemma3", _gemma3, _HF_LAYOUT, _GEMMA3_GGUF, described_as="gemma3_text"),
    Family("gemma3_seeing", _gemma3_seeing, _SEEING_LAYOUT, _GEMMA3_GGUF, described_as="gemma3"),
)
