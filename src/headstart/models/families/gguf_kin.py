"""Llama's kin as GGUF files have them: OLMo 1, Ministral 3, Apertus.

Sources: llama.cpp's converter (conversion/olmo.py, mistral3.py, mistral.py, apertus.py) for names and metadata, and
what is done to values; its src/models for what no file says.
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.config import AttentionConfig, HeadNorms, MlpConfig, ModelConfig, NormsConfig, QueryGrowth
from headstart.models.families.base import TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.llama import GGUF_INTERLEAVED, GGUF_LAYER, GGUF_LAYOUT, base_from_gguf
from headstart.models.families.rope import rope_from_gguf


def olmo(fields: Fields) -> ModelConfig:
    return base_from_gguf(
        fields,
        "olmo",
        eps="attention.layer_norm_epsilon",
        norms=NormsConfig("layer", bias=False, learnt=False),
        attention=AttentionConfig(qkv_clip=fields.optional_number("attention.clamp_kqv")),
    )


def mistral3(fields: Fields) -> ModelConfig:
    """Ministral 3, or the text of Mistral Small 3, whose queries do not grow."""
    head_dim = fields.integer(
        "attention.key_length", fields.integer("embedding_length") // fields.integer("attention.head_count")
    )
    rope = rope_from_gguf(fields, head_dim, 1e6, fields.number("rope.scaling.yarn_log_multiplier", 0.0))
    return base_from_gguf(
        fields, "ministral3", rope=rope, attention=AttentionConfig(query_growth=growth_of_queries(fields))
    )


def growth_of_queries(fields: Fields) -> QueryGrowth | None:
    weight = fields.number("attention.temperature_scale", 0.0)
    if not weight:
        return None
    length = "attention.temperature_length"
    length = length if fields.integer(length, 0, minimum=0) else "rope.scaling.original_context_length"
    return QueryGrowth(weight, fields.integer(length, maximum=MAX_POSITIONS))


def apertus(fields: Fields) -> ModelConfig:
    """The numbers of its activation are metadata, see ``models.metadata_tensors``."""
    return base_from_gguf(
        fields, "apertus", mlp=MlpConfig("xielu", gated=False), attention=AttentionConfig(qk_norm=HeadNorms())
    )


_UNGATED = {role: name for role, name in GGUF_LAYER.items() if role != "gate"}
_CURVE = {"above": "alpha_p", "below": "alpha_n", "slope": "beta", "least": "eps"}
OLMO: TensorLayout = GGUF_INTERLEAVED
MISTRAL3: TensorLayout = GGUF_INTERLEAVED
APERTUS: TensorLayout = replace(
    GGUF_LAYOUT,
    layer=_UNGATED | {f"curve_{role}": f"blk.{{i}}.xielu.{name}" for role, name in _CURVE.items()},
    whole=frozenset(f"curve_{role}" for role in _CURVE),
)
