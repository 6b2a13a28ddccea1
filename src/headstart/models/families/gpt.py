"""GPT-2 and GPT-NeoX (Pythia): layer norms, biases, an MLP without gate.

Sources: the configuration and modelling files of transformers (models/gpt2, gpt_neox); for GGUF llama.cpp's
converter, which turns GPT-2's matrices to [out, in] and GPT-NeoX's q, k, v from per head to one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from headstart.models.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    ResidualConfig,
)
from headstart.models.families.base import CACHE_SCALES, ROTARY_BUFFERS, Family, TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.llama import activation, biased, token_ids_from_gguf, vocab_size_from_gguf
from headstart.models.families.rope import rope_from_gguf, rope_from_hf, rotated_share


def _gpt2(fields: Fields) -> ModelConfig:
    fields.refuse("scale_attn_by_inverse_layer_idx", True, because="a scale for each layer, which is not supported")
    fields.refuse("add_cross_attention", True, because="which no decoder of text alone has")
    hidden = fields.integer("n_embd", 768)
    heads = fields.integer("n_head", 12)
    return ModelConfig(
        family="gpt2",
        vocab_size=fields.integer("vocab_size", 50257),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        mlp_size=fields.integer("n_inner", 4 * hidden),
        max_positions=fields.integer("n_positions", 1024),
        layers=(LayerConfig(rope=None),) * fields.integer("n_layer", 12, maximum=4096),
        norms=NormsConfig("layer", fields.number("layer_norm_epsilon", 1e-5)),
        mlp=MlpConfig(activation(fields, "activation_function", "gelu_new"), gated=False, bias=True),
        embedding=EmbeddingConfig(positions="learned"),
        attention=AttentionConfig(
            scale=None if fields.flag("scale_attn_weights", True) else 1.0, qkv_bias=True, output_bias=True
        ),
        head=OutputHeadConfig(tied=fields.flag("tie_word_embeddings", True)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _gpt2_gguf(fields: Fields) -> ModelConfig:
    config = _from_gguf(fields, "gpt2", "gelu_tanh")
    layers = (LayerConfig(rope=None),) * config.num_layers
    return replace(config, layers=layers, embedding=EmbeddingConfig(positions="learned"))


def _gpt_neox(fields: Fields) -> ModelConfig:
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    head_dim = hidden // heads
    share = rotated_share(fields, 0.25, "rotary_pct")
    theta = fields.number("rotary_emb_base", 10_000.0)
    rope = rope_from_hf(fields, int(head_dim * share), theta, whole_heads=False)
    return ModelConfig(
        family="gpt_neox",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        mlp_size=fields.integer("intermediate_size"),
        max_positions=fields.integer("max_position_embeddings", maximum=MAX_POSITIONS),
        layers=(LayerConfig(),) * fields.integer("num_hidden_layers", maximum=4096),
        ropes=(rope,),
        norms=NormsConfig("layer", fields.number("layer_norm_eps", 1e-5)),
        mlp=MlpConfig(activation(fields, "hidden_act", "gelu"), gated=False, bias=True),
        attention=biased(fields, True),
        residual=ResidualConfig(parallel=fields.flag("use_parallel_residual", True)),
        head=OutputHeadConfig(tied=fields.flag("tie_word_embeddings", False)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _gpt_neox_gguf(fields: Fields) -> ModelConfig:
    config = _from_gguf(fields, "gpt_neox", "gelu")
    return replace(
        config,
        ropes=(rope_from_gguf(fields, fields.integer("rope.dimension_count", config.head_dim)),),
        residual=ResidualConfig(parallel=fields.flag("use_parallel_residual", True)),
    )


def _from_gguf(fields: Fields, family: str, activation: Activation) -> ModelConfig:
    hidden = fields.integer("embedding_length")
    heads = fields.integer("attention.head_count")
    return ModelConfig(
        family=family,
        vocab_size=vocab_size_from_gguf(fields),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        mlp_size=fields.integer("feed_forward_length"),
        max_positions=fields.integer("context_length"),
        layers=(LayerConfig(),) * fields.integer("block_count", maximum=4096),
        norms=NormsConfig("layer", fields.number("attention.layer_norm_epsilon")),
        mlp=MlpConfig(activation, gated=False, bias=True),
        attention=AttentionConfig(qkv_bias=True, output_bias=True),
        **token_ids_from_gguf(fields),
    )


def _heads_together(tensor: Tensor, config: ModelConfig) -> Tensor:
    """[head, (q, k, v), head_dim] along the first axis -> [(q, k, v), head, head_dim]."""
    by_head = tensor.reshape(config.num_heads, 3, config.head_dim, *tensor.shape[1:])
    return by_head.transpose(0, 1).reshape(tensor.shape)


_BUFFERS = r"(bias|masked_bias)"
_GPT2_LAYOUT = TensorLayout(
    prefix="transformer.",
    embedding="wte",
    positions="wpe",
    final_norm="ln_f",
    head="lm_head",
    layer={
        "attention_norm": "h.{i}.ln_1",
        "qkv": "h.{i}.attn.c_attn",
        "output": "h.{i}.attn.c_proj",
        "mlp_norm": "h.{i}.ln_2",
        "up": "h.{i}.mlp.c_fc",
        "down": "h.{i}.mlp.c_proj",
    },
    transposed=True,
    ignored=(rf"h\.\d+\.attn\.{_BUFFERS}",),
)
_GPT_NEOX_LAYOUT = TensorLayout(
    prefix="gpt_neox.",
    embedding="embed_in",
    final_norm="final_layer_norm",
    head="embed_out",
    layer={
        "attention_norm": "layers.{i}.input_layernorm",
        "qkv": "layers.{i}.attention.query_key_value",
        "output": "layers.{i}.attention.dense",
        "mlp_norm": "layers.{i}.post_attention_layernorm",
        "up": "layers.{i}.mlp.dense_h_to_4h",
        "down": "layers.{i}.mlp.dense_4h_to_h",
    },
    convert={"qkv": _heads_together},
    ignored=(rf"layers\.\d+\.attention\.{_BUFFERS}", ROTARY_BUFFERS, *CACHE_SCALES),
)
GGUF_LAYOUT = TensorLayout(
    embedding="token_embd",
    positions="position_embd",
    final_norm="output_norm",
    head="output",
    layer={
        "attention_norm": "blk.{i}.attn_norm",
        "qkv": "blk.{i}.attn_qkv",
        "output": "blk.{i}.attn_output",
        "mlp_norm": "blk.{i}.ffn_norm",
        "up": "blk.{i}.ffn_up",
        "down": "blk.{i}.ffn_down",
    },
)

FAMILIES = (
    Family("gpt2", "gpt2", "gpt2", _gpt2, _gpt2_gguf, _GPT2_LAYOUT, GGUF_LAYOUT),
    Family("gpt_neox", "gpt_neox", "gptneox", _gpt_neox, _gpt_neox_gguf, _GPT_NEOX_LAYOUT, GGUF_LAYOUT),
)
