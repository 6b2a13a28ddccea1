"""OLMo 1 to 3: norms without weights, then norms of a layer's outputs and of all heads together, then windows.

Sources: the configuration and modelling files of transformers (models/olmo, olmo2, olmo3); for GGUF llama.cpp's
converter, which calls 2 and 3 "olmo2" and interleaves the rotary halves of OLMo 1.
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.config import AttentionConfig, HeadNorms, LayerConfig, ModelConfig, NormsConfig
from headstart.models.families import gguf_kin
from headstart.models.families.base import Family
from headstart.models.families.fields import Fields
from headstart.models.families.gguf_layers import slides_from_gguf, window_from_gguf
from headstart.models.families.kin import GGUF_ONLY_POST_NORMED, ONLY_POST_NORMED
from headstart.models.families.llama import HF_LAYOUT, base_from_gguf, base_from_hf, biased, windows_from_hf
from headstart.models.families.rope import rope_from_hf

_THETA = 500_000.0


def _olmo(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "olmo",
        tied=False,
        default_eps=1e-5,
        norms=NormsConfig("layer", bias=False, learnt=False),
        attention=replace(biased(fields), qkv_clip=fields.optional_number("clip_qkv")),
    )


def _olmo2(fields: Fields) -> ModelConfig:
    return _newer(fields, "olmo2")


def _newer(fields: Fields, family: str) -> ModelConfig:
    return base_from_hf(
        fields,
        family,
        tied=False,
        default_eps=1e-5,
        norms=NormsConfig(pre=False, post=True),
        attention=replace(biased(fields), qk_norm=HeadNorms(reach="all")),
    )


def _olmo3(fields: Fields) -> ModelConfig:
    config = _newer(fields, "olmo3")
    sliding = [(i + 1) % 4 != 0 for i in range(config.num_layers)]
    windows = windows_from_hf(fields, config.num_layers, fields.integer("sliding_window", 4096), sliding)
    full = rope_from_hf(fields, config.head_dim, _THETA, "full_attention")
    # Scaling stretches the layers that see everything alone.
    local = replace(rope_from_hf(fields, config.head_dim, full.theta, "sliding_attention"), scaling=None)
    layers = tuple(LayerConfig(window, 0 if window is None else 1) for window in windows)
    return replace(config, layers=layers, ropes=(full, local))


def _olmo2_gguf(fields: Fields) -> ModelConfig:
    config = base_from_gguf(
        fields,
        "olmo2",
        norms=NormsConfig(pre=False, post=True),
        attention=AttentionConfig(qk_norm=HeadNorms(reach="all")),
    )
    window = window_from_gguf(fields)
    if window is None:
        return config
    full, slides = config.ropes[0], slides_from_gguf(fields, config.num_layers, 4)
    layers = (LayerConfig(window, 1) if each else LayerConfig() for each in slides)
    return replace(config, layers=tuple(layers), ropes=(full, replace(full, scaling=None)))


FAMILIES = (
    Family("olmo", "olmo", "olmo", _olmo, gguf_kin.olmo, HF_LAYOUT, gguf_kin.OLMO),
    Family("olmo2", "olmo2", "olmo2", _olmo2, _olmo2_gguf, ONLY_POST_NORMED, GGUF_ONLY_POST_NORMED),
    Family("olmo3", "olmo3", "olmo2", _olmo3, _olmo2_gguf, ONLY_POST_NORMED, GGUF_ONLY_POST_NORMED),
)
