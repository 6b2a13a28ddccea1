"""GLM-4 in its two forms: half of each head is rotated, in interleaved pairs; the later one has norms of outputs, too.

Sources: the configuration and modelling files of transformers (models/glm, glm4); for GGUF llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from headstart.models.config import AttentionConfig, ModelConfig, NormsConfig
from headstart.models.families.base import Family, Gguf, without
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYER, GGUF_LAYOUT
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, halves


def _glm(fields: Fields, post_norms: bool = False) -> ModelConfig:
    return base_of(
        fields,
        default_head_dim=128,
        default_eps=1.5625e-7,
        share=0.5,
        attention=AttentionConfig(qkv_bias=fields.flag("attention_bias", True)),
        norms=NormsConfig(post=post_norms),
    )


_FUSED = without(HF_LAYER, "gate") | {"up": "layers.{i}.mlp.gate_up_proj"}
_SANDWICH = {
    "attention_post_norm": "layers.{i}.post_self_attn_layernorm",
    "mlp_post_norm": "layers.{i}.post_mlp_layernorm",
}
_TURNED = {"q": halves, "k": halves}
_GGUF_FUSED = without(GGUF_LAYER, "gate")

FAMILIES = (
    Family("glm", _glm, replace(HF_LAYOUT, layer=_FUSED, convert=_TURNED)),
    Family(
        "glm4",
        partial(_glm, post_norms=True),
        replace(HF_LAYOUT, layer=_FUSED | _SANDWICH, convert=_TURNED),
        Gguf("glm4", replace(GGUF_LAYOUT, layer=_GGUF_FUSED, convert=_TURNED)),
    ),
)
