"""Decoders whose scores fall with distance: BLOOM, MPT, and Falcon, most of which rotate instead.

Sources: the configuration and modelling files of transformers (models/bloom, falcon, mpt); Press et al. 2022 for the
slopes; for GGUF llama.cpp's converter, which puts the rows of queries, keys and values one after the other.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

from headstart.models.config import (
    Alibi,
    AttentionConfig,
    EmbeddingConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    ResidualConfig,
)
from headstart.models.families.base import Family, Gguf, Parts, TensorLayout
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_JOINT_QKV
from headstart.models.families.layer_normed import heads_apart
from headstart.models.families.llama import BIASED, FULL, LAYER_NORMS, UNROTATED, activation, base_of, biased

_NO_POSITIONS = 2048
"""Tokens that a model without positions is taken to reach where its description says nothing of its training."""


def slopes(heads: int) -> tuple[float, ...]:
    """[head] a geometric row; where ``heads`` is no power of two, every other one of a longer row at the end."""
    whole = 2 ** math.floor(math.log2(heads))

    def row(count: int) -> list[float]:
        return [2 ** (-8 * (i + 1) / count) for i in range(count)]

    return tuple(row(whole) + row(2 * whole)[::2][: heads - whole])


def _base(fields: Fields, family: str = "", **parts: Unpack[Parts]) -> ModelConfig:
    """Layers without a rotation, unless ``parts`` say otherwise."""
    own = {"max_position_embeddings": _NO_POSITIONS, "intermediate_size": 4 * fields.integer("hidden_size")}
    return base_of(
        fields.with_defaults(own),
        family,
        tied=True,
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        default_activation=None,
        layer=UNROTATED,
        **parts,
    )


def _either(fields: Fields, *keys: str) -> str:
    """The first of these entries that is given."""
    return next((key for key in keys if fields.get(key) is not None), keys[0])


def _bloom(fields: Fields) -> ModelConfig:
    fields.refuse("apply_residual_connection_post_layernorm", True, because="a stream that is normed in each layer")
    fields = fields.called(
        {
            "hidden_size": _either(fields, "hidden_size", "n_embed"),
            "num_attention_heads": _either(fields, "n_head", "num_attention_heads"),
            "num_hidden_layers": _either(fields, "n_layer", "num_hidden_layers"),
            "max_position_embeddings": "seq_length",
        }
    )
    return _base(
        fields,
        ropes=(),
        norms=LAYER_NORMS,
        mlp=MlpConfig("gelu_tanh", gated=False, bias=True),
        attention=replace(BIASED, alibi=Alibi(slopes(fields.integer("num_attention_heads")))),
        embedding=EmbeddingConfig(norm=True),
    )


def _mpt(fields: Fields) -> ModelConfig:
    attention = fields.within("attn_config") or Fields({}, fields.source)
    attention.refuse("qk_ln", True, because="norms of all heads")
    attention.refuse("prefix_lm", True, because="a prompt that sees itself")
    attention.refuse("alibi", False, because="positions of another kind")
    fields.require("no_bias", True, default=True)
    names = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    fields = fields.called(names | {"max_position_embeddings": "max_seq_len"})
    inner = fields.integer("expansion_ratio", 4) * fields.integer("hidden_size")
    steepest = attention.number("alibi_bias_max", 8)
    return _base(
        fields.with_defaults({"intermediate_size": inner}),
        ropes=(),
        mlp=MlpConfig("gelu", gated=False),
        norms=NormsConfig("layer", bias=False),
        attention=AttentionConfig(
            scale=attention.optional_number("softmax_scale"),
            qkv_clip=attention.optional_number("clip_qkv"),
            alibi=Alibi(_mpt_slopes(fields.integer("num_attention_heads"), steepest)),
        ),
    )


def _in_mpt(fields: Fields) -> dict[str, Any]:
    key = "attention.max_alibi_bias"
    if fields.optional_number(key) is None:
        raise fields.unsupported(key, fields.get(key), "more than 0")
    return {"attn_config": {"alibi_bias_max": fields.get(key), "clip_qkv": fields.optional_number("clip_qkv")}}


def _mpt_slopes(heads: int, steepest: float) -> tuple[float, ...]:
    whole = 2 ** math.ceil(math.log2(heads))
    row = [2 ** (-steepest * (i + 1) / whole) for i in range(whole)]
    return tuple(row) if whole == heads else tuple([*row[1::2], *row[::2]][:heads])


def _falcon(fields: Fields) -> ModelConfig:
    heads = _either(fields, "num_attention_heads", "n_head")
    layers = _either(fields, "num_hidden_layers", "n_layer")
    fields = fields.called(
        {"num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": "ffn_hidden_size"}
    )
    is_new = fields.flag("new_decoder_architecture", False)
    parallel = is_new or fields.flag("parallel_attn", True)
    two_norms = is_new and fields.integer("num_ln_in_parallel_attn", 2) == 2
    count, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = fields.integer("num_kv_heads", count) if is_new else 1 if fields.flag("multi_query", True) else count
    alibi, attention = fields.flag("alibi", False), biased(fields, key="bias")
    if alibi:
        attention = replace(attention, alibi=Alibi(slopes(count), scale=(hidden // count) ** -0.5, coarse=True))
    parts: Parts = {
        "norms": NormsConfig("layer", shared=parallel and not two_norms),
        "mlp": MlpConfig(activation(fields, "activation", "gelu"), gated=False, bias=attention.qkv_bias),
        "residual": ResidualConfig(parallel=parallel),
        "attention": attention,
    }
    if alibi:
        parts["ropes"] = ()
    config = _base(fields.with_entries(num_key_value_heads=kv_heads), "falcon_new" if two_norms else "", **parts)
    return config if alibi else replace(config, layers=(FULL,) * config.num_layers)


def _in_falcon(fields: Fields) -> dict[str, Any]:
    """Files do not say which of its two forms a model has; those with several heads of keys have two norms."""
    heads = fields.integer("num_key_value_heads", 1)
    return {"new_decoder_architecture": heads > 1, "num_kv_heads": heads}


_BLOOM = TensorLayout(
    prefix="transformer.",
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    final_norm="ln_f",
    head="lm_head",
    layer={
        "attention_norm": "h.{i}.input_layernorm",
        "qkv": "h.{i}.self_attention.query_key_value",
        "output": "h.{i}.self_attention.dense",
        "mlp_norm": "h.{i}.post_attention_layernorm",
        "up": "h.{i}.mlp.dense_h_to_4h",
        "down": "h.{i}.mlp.dense_4h_to_h",
    },
    convert={"qkv": heads_apart},
    ignored=(r"h\.\d+\.self_attention\.rotary_emb\.inv_freq",),
)
_TWO_NORMS = {**_BLOOM.layer, "attention_norm": "h.{i}.ln_attn", "mlp_norm": "h.{i}.ln_mlp"}
_MPT = replace(
    _BLOOM,
    embedding="wte",
    embedding_norm="",
    final_norm="norm_f",
    layer={
        "attention_norm": "blocks.{i}.norm_1",
        "qkv": "blocks.{i}.attn.Wqkv",
        "output": "blocks.{i}.attn.out_proj",
        "mlp_norm": "blocks.{i}.norm_2",
        "up": "blocks.{i}.ffn.up_proj",
        "down": "blocks.{i}.ffn.down_proj",
    },
    convert={},
)

_TWO_NORMS_GGUF = {**GGUF_JOINT_QKV.layer, "attention_norm": "blk.{i}.attn_norm_2", "mlp_norm": "blk.{i}.attn_norm"}


FAMILIES = (
    Family("bloom", _bloom, _BLOOM, Gguf("bloom", GGUF_JOINT_QKV)),
    Family("mpt", _mpt, _MPT, Gguf("mpt", GGUF_JOINT_QKV, computed=_in_mpt)),
    Family("falcon", _falcon, _BLOOM, Gguf("falcon", GGUF_JOINT_QKV, computed=_in_falcon)),
    Family(
        "falcon_new",
        _falcon,
        replace(_BLOOM, layer=_TWO_NORMS),
        Gguf("", replace(GGUF_JOINT_QKV, layer=_TWO_NORMS_GGUF)),
        described_as="",
    ),
)
