"""What came of GPT-2 and GPT-3 elsewhere: GPT-J, CodeGen, GPT-Neo, GPT-BigCode (SantaCoder, StarCoder).

Sources: the configuration and modelling files of transformers (models/gptj, codegen, gpt_neo, gpt_bigcode); for GGUF
llama.cpp's converter, which calls the last one "starcoder".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    ResidualConfig,
    RopeConfig,
)
from headstart.models.families.base import Family, Parts, TensorLayout
from headstart.models.families.fields import Fields
from headstart.models.families.gpt import GGUF_LAYOUT
from headstart.models.families.layer_normed import LAYER_NORMS, heads_apart
from headstart.models.families.llama import activation, halves, in_halves, token_ids_from_gguf, vocab_size_from_gguf

_CODEGEN_PARTS = 4
"""CodeGen's q, v and k lie side by side four times, as its training cut them up."""


def _base(
    fields: Fields,
    family: str,
    names: dict[str, str],
    tied: bool,
    default_activation: str = "gelu_new",
    **parts: Unpack[Parts],
) -> ModelConfig:
    """What they share; ``names``: of sizes that are called as in GPT-2 elsewhere."""
    hidden = fields.integer(names.get("hidden", "n_embd"))
    heads = fields.integer(names.get("heads", "n_head"))
    config = ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        mlp_size=fields.integer(names.get("inner", "n_inner"), 4 * hidden),
        max_positions=fields.integer(names.get("positions", "n_positions"), 2048),
        layers=(LayerConfig(rope=None),) * fields.integer(names.get("layers", "n_layer"), maximum=4096),
        norms=replace(parts.pop("norms", LAYER_NORMS), eps=fields.number("layer_norm_epsilon", 1e-5)),
        mlp=MlpConfig(activation(fields, "activation_function", default_activation), gated=False, bias=True),
        head=replace(parts.pop("head", OutputHeadConfig()), tied=fields.flag("tie_word_embeddings", tied)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )
    return replace(config, **parts)


def _gptj(fields: Fields) -> ModelConfig:
    return _rotated(fields, "gptj")


def _codegen(fields: Fields) -> ModelConfig:
    return _rotated(fields, "codegen")


def _rotated(fields: Fields, family: str) -> ModelConfig:
    config = _base(
        fields,
        family,
        {},
        tied=False,
        head=OutputHeadConfig(bias=True),
        residual=ResidualConfig(parallel=True),
        norms=NormsConfig("layer", shared=True),
    )
    rope = RopeConfig(10_000.0, fields.integer("rotary_dim", 64))
    return replace(config, ropes=(rope,), layers=(LayerConfig(),) * config.num_layers)


def _gpt_neo(fields: Fields) -> ModelConfig:
    names = {"hidden": "hidden_size", "heads": "num_heads", "inner": "intermediate_size", "layers": "num_layers"}
    config = _base(fields, "gpt_neo", names | {"positions": "max_position_embeddings"}, tied=True)
    window = fields.integer("window_size", 256)
    layers = (LayerConfig(window if kind == "local" else None, None) for kind in _neo_kinds(fields, config.num_layers))
    return replace(
        config,
        layers=tuple(layers),
        embedding=EmbeddingConfig(positions="learned"),
        attention=AttentionConfig(scale=1.0, output_bias=True),
    )


def _neo_kinds(fields: Fields, num_layers: int) -> list[str]:
    """[layer] from ``attention_types``, [[kinds, how often they come one after the other], ...]."""
    groups = fields.get("attention_types")
    groups = [[["global", "local"], num_layers // 2]] if groups is None else groups
    kinds: list[str] = []
    try:
        for several, times in groups:
            if len(several) * int(times) > num_layers:
                raise ValueError
            kinds += list(several) * int(times)
        if len(kinds) != num_layers or any(kind not in ("global", "local") for kind in kinds):
            raise ValueError
    except (TypeError, ValueError):
        wanted = f"kinds, global or local, of {num_layers} layers"
        raise fields.bad("attention_types", groups, wanted) from None
    return kinds


def _gpt_bigcode(fields: Fields) -> ModelConfig:
    fields.refuse("add_cross_attention", True, because="which no decoder of text alone has")
    config = _base(
        fields,
        "gpt_bigcode",
        {},
        tied=True,
        default_activation="gelu_pytorch_tanh",
        embedding=EmbeddingConfig(positions="learned"),
        attention=AttentionConfig(
            scale=None if fields.flag("scale_attn_weights", True) else 1.0, qkv_bias=True, output_bias=True
        ),
    )
    return replace(config, num_kv_heads=1 if fields.flag("multi_query", True) else config.num_heads)


def _gpt_bigcode_gguf(fields: Fields) -> ModelConfig:
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    return ModelConfig(
        family="gpt_bigcode",
        vocab_size=vocab_size_from_gguf(fields),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", 1),
        head_dim=hidden // heads,
        mlp_size=fields.integer("feed_forward_length"),
        max_positions=fields.integer("context_length"),
        layers=(LayerConfig(rope=None),) * fields.integer("block_count", maximum=4096),
        norms=NormsConfig("layer", fields.number("attention.layer_norm_epsilon")),
        mlp=MlpConfig("gelu_tanh", gated=False, bias=True),
        embedding=EmbeddingConfig(positions="learned"),
        attention=AttentionConfig(qkv_bias=True, output_bias=True),
        **token_ids_from_gguf(fields),
    )


def _codegen_qkv(tensor: Tensor, config: ModelConfig) -> Tensor:
    parts = tensor.reshape(_CODEGEN_PARTS, 3, -1, *tensor.shape[1:])
    q, v, k = (parts[:, i].flatten(0, 1) for i in range(3))
    size, dim = config.head_dim, config.ropes[0].dim
    return torch.cat((in_halves(q, size, dim), in_halves(k, size, dim), v))


def _bigcode_qkv(tensor: Tensor, config: ModelConfig) -> Tensor:
    """With one head of keys and values they stand as everybody's do; else head by head."""
    return tensor if config.num_kv_heads == 1 else heads_apart(tensor, config)


_BUFFERS = r"h\.\d+\.attn\.(attention\.)?(bias|masked_bias|causal_mask|embed_positions)"
_GPTJ = TensorLayout(
    prefix="transformer.",
    embedding="wte",
    final_norm="ln_f",
    head="lm_head",
    layer={
        "attention_norm": "h.{i}.ln_1",
        "q": "h.{i}.attn.q_proj",
        "k": "h.{i}.attn.k_proj",
        "v": "h.{i}.attn.v_proj",
        "output": "h.{i}.attn.out_proj",
        "up": "h.{i}.mlp.fc_in",
        "down": "h.{i}.mlp.fc_out",
    },
    convert={"q": halves, "k": halves},
    ignored=(_BUFFERS,),
)
_CODEGEN = replace(
    _GPTJ,
    layer={role: name for role, name in _GPTJ.layer.items() if role not in ("q", "k", "v")}
    | {"qkv": "h.{i}.attn.qkv_proj"},
    convert={"qkv": _codegen_qkv},
)
_GPT_NEO = replace(
    _GPTJ,
    positions="wpe",
    layer={
        "attention_norm": "h.{i}.ln_1",
        "q": "h.{i}.attn.attention.q_proj",
        "k": "h.{i}.attn.attention.k_proj",
        "v": "h.{i}.attn.attention.v_proj",
        "output": "h.{i}.attn.attention.out_proj",
        "mlp_norm": "h.{i}.ln_2",
        "up": "h.{i}.mlp.c_fc",
        "down": "h.{i}.mlp.c_proj",
    },
    convert={},
)
_GPT_BIGCODE = replace(
    _GPT_NEO,
    layer={
        "attention_norm": "h.{i}.ln_1",
        "qkv": "h.{i}.attn.c_attn",
        "output": "h.{i}.attn.c_proj",
        "mlp_norm": "h.{i}.ln_2",
        "up": "h.{i}.mlp.c_fc",
        "down": "h.{i}.mlp.c_proj",
    },
    convert={"qkv": _bigcode_qkv},
)

FAMILIES = (
    Family("gptj", "gptj", "", _gptj, None, _GPTJ, None),
    Family("codegen", "codegen", "", _codegen, None, _CODEGEN, None),
    Family("gpt_neo", "gpt_neo", "", _gpt_neo, None, _GPT_NEO, None),
    Family("gpt_bigcode", "gpt_bigcode", "starcoder", _gpt_bigcode, _gpt_bigcode_gguf, _GPT_BIGCODE, GGUF_LAYOUT),
)
