"""Decoders whose scores fall with distance: BLOOM, MPT, and Falcon, most of which rotate instead.

Sources: the configuration and modelling files of transformers (models/bloom, falcon, mpt); Press et al. 2022 for the
slopes; for GGUF llama.cpp's converter, which puts the rows of queries, keys and values one after the other.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

from headstart.models.config import (
    Alibi,
    AttentionConfig,
    EmbeddingConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    ResidualConfig,
)
from headstart.models.families.base import Family, Parts, TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.layer_normed import LAYER_NORMS, heads_apart
from headstart.models.families.llama import GGUF_LAYOUT, activation, base_from_gguf, biased
from headstart.models.families.rope import rope_from_hf

_NO_POSITIONS = 2048
"""Tokens that a model without positions is taken to reach where its description says nothing of its training."""


def slopes(heads: int) -> tuple[float, ...]:
    """[head] a geometric row; where ``heads`` is no power of two, every other one of a longer row at the end."""
    whole = 2 ** math.floor(math.log2(heads))

    def row(count: int) -> list[float]:
        return [2 ** (-8 * (i + 1) / count) for i in range(count)]

    return tuple(row(whole) + row(2 * whole)[::2][: heads - whole])


def _base(
    fields: Fields,
    family: str,
    hidden: int,
    heads: int,
    layers: int,
    positions: int,
    *,
    num_kv_heads: int | None = None,
    mlp_size: int | None = None,
    **parts: Unpack[Parts],
) -> ModelConfig:
    config = ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=num_kv_heads or heads,
        head_dim=hidden // heads,
        mlp_size=mlp_size or 4 * hidden,
        max_positions=positions,
        layers=(LayerConfig(rope=None),) * layers,
        norms=replace(parts.pop("norms", LAYER_NORMS), eps=fields.number("layer_norm_epsilon", 1e-5)),
        head=OutputHeadConfig(tied=fields.flag("tie_word_embeddings", True)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )
    return replace(config, **parts)


def _either(fields: Fields, *keys: str) -> int:
    """The first of these sizes that is given."""
    return fields.integer(next((key for key in keys if fields.get(key) is not None), keys[0]))


def _bloom(fields: Fields) -> ModelConfig:
    fields.refuse("apply_residual_connection_post_layernorm", True, because="a stream that is normed in each layer")
    heads = _either(fields, "n_head", "num_attention_heads")
    return _base(
        fields,
        "bloom",
        hidden=_either(fields, "hidden_size", "n_embed"),
        heads=heads,
        layers=_either(fields, "n_layer", "num_hidden_layers"),
        positions=fields.integer("seq_length", _NO_POSITIONS, maximum=MAX_POSITIONS),
        mlp=MlpConfig("gelu_tanh", gated=False, bias=True),
        attention=AttentionConfig(qkv_bias=True, output_bias=True, alibi=Alibi(slopes(heads))),
        embedding=EmbeddingConfig(norm=True),
    )


def _mpt(fields: Fields) -> ModelConfig:
    attention = fields.within("attn_config") or Fields({}, fields.source)
    attention.refuse("qk_ln", True, because="norms of all heads")
    attention.refuse("prefix_lm", True, because="a prompt that sees itself")
    attention.refuse("alibi", False, because="positions of another kind")
    fields.require("no_bias", True, default=True)
    heads, hidden = fields.integer("n_heads"), fields.integer("d_model")
    return _base(
        fields,
        "mpt",
        hidden=hidden,
        heads=heads,
        layers=fields.integer("n_layers", maximum=4096),
        positions=fields.integer("max_seq_len", _NO_POSITIONS, maximum=MAX_POSITIONS),
        mlp_size=fields.integer("expansion_ratio", 4) * hidden,
        mlp=MlpConfig("gelu", gated=False),
        norms=NormsConfig("layer", bias=False),
        attention=AttentionConfig(
            scale=attention.optional_number("softmax_scale"),
            qkv_clip=attention.optional_number("clip_qkv"),
            alibi=Alibi(_mpt_slopes(heads, attention.number("alibi_bias_max", 8))),
        ),
    )


def _mpt_slopes(heads: int, steepest: float) -> tuple[float, ...]:
    whole = 2 ** math.ceil(math.log2(heads))
    row = [2 ** (-steepest * (i + 1) / whole) for i in range(whole)]
    return tuple(row) if whole == heads else tuple([*row[1::2], *row[::2]][:heads])


def _falcon(fields: Fields) -> ModelConfig:
    hidden = fields.integer("hidden_size")
    heads = _either(fields, "num_attention_heads", "n_head")
    is_new = fields.flag("new_decoder_architecture", False)
    parallel = is_new or fields.flag("parallel_attn", True)
    two_norms = is_new and fields.integer("num_ln_in_parallel_attn", 2) == 2
    kv_heads = fields.integer("num_kv_heads", heads) if is_new else 1 if fields.flag("multi_query", True) else heads
    has_alibi, attention = fields.flag("alibi", False), biased(fields, key="bias")
    alibi = Alibi(slopes(heads), scale=(hidden // heads) ** -0.5, coarse=True) if has_alibi else None
    config = _base(
        fields,
        "falcon_new" if two_norms else "falcon",
        hidden=hidden,
        heads=heads,
        layers=_either(fields, "num_hidden_layers", "n_layer"),
        positions=fields.integer("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
        num_kv_heads=kv_heads,
        mlp_size=fields.integer("ffn_hidden_size", 4 * hidden),
        mlp=MlpConfig(activation(fields, "activation", "gelu"), gated=False, bias=attention.qkv_bias),
        residual=ResidualConfig(parallel=parallel),
        norms=NormsConfig("layer", shared=parallel and not two_norms),
        attention=replace(attention, alibi=alibi),
    )
    if has_alibi:
        return config
    rope = rope_from_hf(fields, config.head_dim)
    return replace(config, ropes=(rope,), layers=(LayerConfig(),) * config.num_layers)


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

_BLOOM_GGUF = replace(
    GGUF_LAYOUT,
    embedding_norm="token_embd_norm",
    layer={
        "attention_norm": "blk.{i}.attn_norm",
        "qkv": "blk.{i}.attn_qkv",
        "output": "blk.{i}.attn_output",
        "mlp_norm": "blk.{i}.ffn_norm",
        "up": "blk.{i}.ffn_up",
        "down": "blk.{i}.ffn_down",
    },
)
_TWO_NORMS_GGUF = {
    **_BLOOM_GGUF.layer,
    "attention_norm": "blk.{i}.attn_norm_2",
    "mlp_norm": "blk.{i}.attn_norm",
}


def _base_gguf(fields: Fields, family: str, **parts: Unpack[Parts]) -> ModelConfig:
    return base_from_gguf(
        fields,
        family,
        eps="attention.layer_norm_epsilon",
        **parts,
    )


def _unrotated(config: ModelConfig, slopes_of_heads: tuple[float, ...]) -> ModelConfig:
    layers = (LayerConfig(rope=None),) * config.num_layers
    return replace(config, attention=replace(config.attention, alibi=Alibi(slopes_of_heads)), ropes=(), layers=layers)


def _bloom_gguf(fields: Fields) -> ModelConfig:
    config = _base_gguf(
        fields,
        "bloom",
        norms=LAYER_NORMS,
        mlp=MlpConfig("gelu_tanh", gated=False),
        embedding=EmbeddingConfig(norm=True),
    )
    return _unrotated(config, slopes(config.num_heads))


def _mpt_gguf(fields: Fields) -> ModelConfig:
    steepest = fields.optional_number("attention.max_alibi_bias")
    if steepest is None:
        raise fields.unsupported("attention.max_alibi_bias", fields.get("attention.max_alibi_bias"), "more than 0")
    clip = fields.optional_number("attention.clamp_kqv")
    config = _base_gguf(
        fields,
        "mpt",
        mlp=MlpConfig("gelu", gated=False),
        norms=NormsConfig("layer", bias=False),
        attention=AttentionConfig(qkv_clip=clip),
    )
    return _unrotated(config, _mpt_slopes(config.num_heads, steepest))


def _falcon_gguf(fields: Fields) -> ModelConfig:
    """Files do not say which of its two forms a model has; those with several heads of keys have two norms."""
    two_norms = fields.integer("attention.head_count_kv", 1) > 1
    return _base_gguf(
        fields,
        "falcon_new" if two_norms else "falcon",
        mlp=MlpConfig("gelu", gated=False),
        residual=ResidualConfig(parallel=True),
        norms=NormsConfig("layer", shared=not two_norms),
    )


FAMILIES = (
    Family("bloom", "bloom", "bloom", _bloom, _bloom_gguf, _BLOOM, _BLOOM_GGUF),
    Family("mpt", "mpt", "mpt", _mpt, _mpt_gguf, _MPT, _BLOOM_GGUF),
    Family("falcon", "falcon", "falcon", _falcon, _falcon_gguf, _BLOOM, _BLOOM_GGUF),
    Family(
        "falcon_new",
        "",
        "",
        _falcon,
        None,
        replace(_BLOOM, layer=_TWO_NORMS),
        replace(_BLOOM_GGUF, layer=_TWO_NORMS_GGUF),
    ),
)
