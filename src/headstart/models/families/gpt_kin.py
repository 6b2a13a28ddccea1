"""What came of GPT-2 and GPT-3 elsewhere: GPT-J, CodeGen, GPT-Neo, GPT-BigCode (SantaCoder, StarCoder).

Sources: the configuration and modelling files of transformers (models/gptj, codegen, gpt_neo, gpt_bigcode); for GGUF
llama.cpp's converter, which calls the last one "starcoder".
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    LayerConfig,
    ModelConfig,
    OutputHeadConfig,
    ResidualConfig,
    RopeConfig,
)
from headstart.models.families.base import Family, Gguf, TensorLayout, without
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_JOINT_QKV
from headstart.models.families.gpt import GPT2_LAYER, GPT2_NAMES, gpt
from headstart.models.families.layer_normed import heads_apart
from headstart.models.families.llama import halves, in_halves

_CODEGEN_PARTS = 4
"""CodeGen's q, v and k lie side by side four times, as its training cut them up."""


def _rotated(fields: Fields) -> ModelConfig:
    config = gpt(fields.called(GPT2_NAMES))
    return replace(
        config,
        ropes=(RopeConfig(10_000.0, fields.integer("rotary_dim", 64)),),
        layers=(LayerConfig(),) * config.num_layers,
        norms=replace(config.norms, shared=True),
        attention=AttentionConfig(),
        embedding=EmbeddingConfig(),
        head=OutputHeadConfig(tied=fields.flag("tie_word_embeddings", False), bias=True),
        residual=ResidualConfig(parallel=True),
    )


def _gpt_neo(fields: Fields) -> ModelConfig:
    config = gpt(fields.called({"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}))
    window = fields.integer("window_size", 256)
    layers = (LayerConfig(window if kind == "local" else None, None) for kind in _neo_kinds(fields, config.num_layers))
    return replace(config, layers=tuple(layers), attention=AttentionConfig(scale=1.0, output_bias=True))


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
    fields = fields.called(GPT2_NAMES)
    if fields.flag("multi_query", True):
        fields = fields.with_defaults({"num_key_value_heads": 1})
    return gpt(fields, default_activation="gelu_pytorch_tanh")


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
    layer=without(_GPTJ.layer, "q", "k", "v") | {"qkv": "h.{i}.attn.qkv_proj"},
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
_GPT_BIGCODE = replace(_GPT_NEO, layer=GPT2_LAYER, convert={"qkv": _bigcode_qkv})

FAMILIES = (
    Family("gptj", _rotated, _GPTJ),
    Family("codegen", _rotated, _CODEGEN),
    Family("gpt_neo", _gpt_neo, _GPT_NEO),
    Family("gpt_bigcode", _gpt_bigcode, _GPT_BIGCODE, Gguf("starcoder", GGUF_JOINT_QKV)),
)
