"""DBRX (Databricks): experts, layer norms without a bias, and queries, keys and values that are cut off.

Sources: the configuration and modelling files of transformers (models/dbrx); for GGUF llama.cpp's converter
(conversion/dbrx.py).
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.config import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    RopeConfig,
)
from headstart.models.families import gguf_mixtures
from headstart.models.families.base import Family, TensorLayout
from headstart.models.families.experts import with_experts
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.layer_normed import without
from headstart.models.families.llama import activation, base_from_gguf
from headstart.models.families.rope import rope_from_gguf, rope_from_hf

_NORMS = NormsConfig("layer", eps=1e-5, bias=False)
"""No description holds the epsilon."""


def _dbrx(fields: Fields) -> ModelConfig:
    attention, inner = fields.within("attn_config"), fields.within("ffn_config")
    if attention is None or inner is None:
        raise fields.missing("attn_config" if attention is None else "ffn_config")
    hidden, heads = fields.integer("d_model", 2048), fields.integer("n_heads", 16)
    size, count = inner.integer("ffn_hidden_size", 3584), inner.integer("moe_num_experts", 4)
    form = inner.within("ffn_act_fn")
    config = ModelConfig(
        family="dbrx",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=attention.integer("kv_n_heads", 1),
        head_dim=hidden // heads,
        mlp_size=size,
        max_positions=fields.integer("max_seq_len", 2048, maximum=MAX_POSITIONS),
        layers=(LayerConfig(),) * fields.integer("n_layers", 24, maximum=4096),
        ropes=(_rope(fields, attention, hidden // heads),),
        norms=_NORMS,
        mlp=MlpConfig("silu" if form is None else activation(form, "name", "silu")),
        attention=AttentionConfig(qkv_clip=attention.optional_number("clip_qkv")),
        head=OutputHeadConfig(tied=False),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )
    power = inner.number("moe_normalize_expert_weights", 1.0) if inner.get("moe_normalize_expert_weights") else None
    if power not in (None, 1.0):
        raise inner.unsupported("moe_normalize_expert_weights", power, "1 or null")
    normalised = power is not None or not inner.has("moe_normalize_expert_weights")
    used = inner.integer("moe_top_k", 1, maximum=count)
    return with_experts(config, ExpertsConfig(count, used, size, normalised=normalised))


def _rope(fields: Fields, attention: Fields, dim: int) -> RopeConfig:
    """Its base stands beside the attention in released files."""
    return rope_from_hf(fields, dim, attention.number("rope_theta", 10_000.0))


def _gguf(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("embedding_length") // fields.integer("attention.head_count")
    config = base_from_gguf(
        fields,
        "dbrx",
        rope=rope_from_gguf(fields, head_dim),
        eps="attention.layer_norm_epsilon",
        experts=True,
        attention=AttentionConfig(qkv_clip=fields.optional_number("attention.clamp_kqv")),
        norms=_NORMS,
    )
    return with_experts(config, gguf_mixtures.experts_of(fields, config.mlp_size, True))


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
    whole=frozenset({"expert_gate", "expert_up", "expert_down"}),
    stacks_below=True,
)
_GGUF_LAYOUT = replace(
    gguf_mixtures.LAYOUT,
    layer=without(dict(gguf_mixtures.LAYOUT.layer), "q", "k", "v")
    | {"qkv": "blk.{i}.attn_qkv", "mlp_norm": "blk.{i}.attn_output_norm"},
)

FAMILIES = (Family("dbrx", "dbrx", "dbrx", _dbrx, _gguf, _LAYOUT, _GGUF_LAYOUT, "experts"),)
