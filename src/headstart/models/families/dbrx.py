"""DBRX (Databricks): experts, layer norms without a bias, and queries, keys and values that are cut off.

Sources: the configuration and modelling files of transformers (models/dbrx); for GGUF llama.cpp's converter
(conversion/dbrx.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import AttentionConfig, MlpConfig, ModelConfig, NormsConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf, TensorLayout
from headstart.models.families.experts import with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_JOINT_QKV
from headstart.models.families.llama import activation, base_of

_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}
_SIZES = {"d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048}


def _dbrx(fields: Fields) -> ModelConfig:
    attention, inner = fields.within("attn_config"), fields.within("ffn_config")
    if attention is None or inner is None:
        raise fields.missing("attn_config" if attention is None else "ffn_config")
    size, count = inner.integer("ffn_hidden_size", 3584), inner.integer("moe_num_experts", 4)
    form = inner.within("ffn_act_fn")
    named = fields.with_defaults(_SIZES).called(_NAMES)
    config = base_of(
        named.with_entries(intermediate_size=size, num_key_value_heads=attention.integer("kv_n_heads", 1)),
        # Its base stands beside the attention in released files.
        default_theta=attention.number("rope_theta", 10_000.0),
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        default_activation=None,
        norms=NormsConfig("layer", bias=False),
        mlp=MlpConfig("silu" if form is None else activation(form, "name", "silu")),
        attention=AttentionConfig(qkv_clip=attention.optional_number("clip_qkv")),
    )
    power = inner.number("moe_normalize_expert_weights", 1.0) if inner.get("moe_normalize_expert_weights") else None
    if power not in (None, 1.0):
        raise inner.unsupported("moe_normalize_expert_weights", power, "1 or null")
    normalised = power is not None or not inner.has("moe_normalize_expert_weights")
    used = inner.integer("moe_top_k", 1, maximum=count)
    return with_experts(config, ExpertsConfig(count, used, size, normalised=normalised))


def _computed(fields: Fields) -> dict[str, Any]:
    """Of GGUF metadata the parts that a ``config.json`` has within it."""
    return {
        "attn_config": {
            "kv_n_heads": fields.integer("num_key_value_heads", 1),
            "clip_qkv": fields.optional_number("clip_qkv"),
        },
        "ffn_config": {
            "ffn_hidden_size": fields.integer("intermediate_size"),
            "moe_num_experts": fields.integer("num_experts"),
            "moe_top_k": fields.integer("num_experts_per_tok"),
        },
    }


_LAYOUT = TensorLayout(
    prefix="transformer.",
    embedding="wte",
    final_norm="norm_f",
    head="lm_head",
    layer={
        "attention_norm": "blocks.{i}.norm_attn_norm.norm_1",
        "qkv": "blocks.{i}.norm_attn_norm.attn.Wqkv",
        "output": "blocks.{i}.norm_attn_norm.attn.out_proj",
        "mlp_norm": "blocks.{i}.norm_attn_norm.norm_2",
        "router": "blocks.{i}.ffn.router.layer",
        "expert_gate": "blocks.{i}.ffn.experts.mlp.w1",
        "expert_up": "blocks.{i}.ffn.experts.mlp.v1",
        "expert_down": "blocks.{i}.ffn.experts.mlp.w2",
    },
    whole=WHOLE | {"expert_gate", "expert_up", "expert_down"},
    stacks="below",
)
_GGUF_LAYOUT = replace(GGUF_JOINT_QKV, layer={**GGUF_JOINT_QKV.layer, "mlp_norm": "blk.{i}.attn_output_norm"})

FAMILIES = (Family("dbrx", _dbrx, _LAYOUT, Gguf("dbrx", _GGUF_LAYOUT, computed=_computed), "experts"),)
