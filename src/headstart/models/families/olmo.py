"""OLMo 1 to 3: norms without weights, then norms of a layer's outputs and of all heads together, then windows.

Sources: the configuration and modelling files of transformers (models/olmo, olmo2, olmo3); for GGUF llama.cpp's
converter, which calls 2 and 3 "olmo2" and interleaves the rotary halves of OLMo 1.
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.config import HeadNorms, ModelConfig, NormsConfig
from headstart.models.families.base import Family, Gguf
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYOUT
from headstart.models.families.kin import ONLY_POST_NORMED
from headstart.models.families.llama import GGUF_INTERLEAVED, HF_LAYOUT, base_of, biased, windowed
from headstart.models.families.rope import rope_of

_THETA = 500_000.0


def _olmo(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        default_eps=1e-5,
        norms=NormsConfig("layer", bias=False, learnt=False),
        attention=replace(biased(fields), qkv_clip=fields.optional_number("clip_qkv")),
    )


def _olmo2(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        default_eps=1e-5,
        norms=NormsConfig(pre=False, post=True),
        attention=replace(biased(fields), qk_norm=HeadNorms(reach="all")),
    )


def _olmo3(fields: Fields) -> ModelConfig:
    config = _olmo2(fields)
    window = fields.integer("sliding_window", 4096)
    config = windowed(fields, config, window, lambda index: (index + 1) % 4 != 0, within=1)
    full = rope_of(fields, config.head_dim, _THETA, "full_attention")
    # Scaling stretches the layers that see everything alone.
    local = replace(rope_of(fields, config.head_dim, full.theta, "sliding_attention"), scaling=None)
    return replace(config, ropes=(full, local))


def _olmo2_or_3(fields: Fields) -> ModelConfig:
    """GGUF has one architecture for both; the third one has windows."""
    return (_olmo2 if fields.get("sliding_window") is None else _olmo3)(fields)


FAMILIES = (
    Family("olmo", _olmo, HF_LAYOUT, Gguf("olmo", GGUF_INTERLEAVED, {"rms_norm_eps": "attention.layer_norm_epsilon"})),
    Family("olmo2", _olmo2, ONLY_POST_NORMED, Gguf("olmo2", GGUF_LAYOUT, read=_olmo2_or_3)),
    Family("olmo3", _olmo3, ONLY_POST_NORMED, Gguf("olmo2", GGUF_LAYOUT, read=_olmo2_or_3)),
)
