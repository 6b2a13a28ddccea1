"""Decoders with layer norms and rotations: StableLM, Starcoder2, Phi 1 and 2, Persimmon, Nemotron, Jais 2; and OPT and
BioGPT, whose positions are learnt.

Sources: the configuration and modelling files of transformers (models of these names); for GGUF llama.cpp's converter,
which adds 1 to Nemotron's norms and keeps Persimmon's and Phi's fused matrices one after the other.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    HeadNorms,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    PositionTable,
    ResidualConfig,
)
from headstart.models.families.bart import LAYER
from headstart.models.families.base import Family, Gguf, TensorLayout, without
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYOUT, minus_one
from headstart.models.families.llama import (
    BIASED,
    HF_LAYER,
    HF_LAYOUT,
    LAYER_NORMS,
    UNGATED_BIASED,
    UNROTATED,
    base_of,
    biased,
    mlp_of,
)


def _stablelm(fields: Fields) -> ModelConfig:
    parallel = fields.flag("use_parallel_residual", False)
    return base_of(
        fields,
        eps="layer_norm_eps",
        default_eps=1e-5,
        share=0.25,
        norms=NormsConfig("layer", shared=parallel),
        attention=AttentionConfig(
            qkv_bias=fields.flag("use_qkv_bias", False),
            qk_norm=HeadNorms("layer", own=True) if fields.flag("qk_layernorm", False) else None,
        ),
        residual=ResidualConfig(parallel=parallel),
    )


def _starcoder2(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        tied=True,
        eps="norm_epsilon",
        default_eps=1e-5,
        default_activation="gelu_pytorch_tanh",
        layer=LayerConfig(fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)),
        norms=LAYER_NORMS,
        attention=biased(fields, True, "use_bias"),
        mlp=MlpConfig(gated=False, bias=fields.flag("use_bias", True)),
    )


def _phi(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        eps="layer_norm_eps",
        default_eps=1e-5,
        default_activation="gelu_new",
        share=0.5,
        norms=NormsConfig("layer", shared=True),
        attention=_normed_heads(fields, False),
        mlp=UNGATED_BIASED,
        residual=ResidualConfig(parallel=True),
        head=OutputHeadConfig(bias=True),
    )


def _normed_heads(fields: Fields, default: bool) -> AttentionConfig:
    norm = HeadNorms("layer", bias=True) if fields.flag("qk_layernorm", default) else None
    return replace(BIASED, qk_norm=norm)


def _persimmon(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        default_theta=25_000.0,
        eps="layer_norm_eps",
        default_eps=1e-5,
        default_activation="relu2",
        share=0.5,
        norms=LAYER_NORMS,
        attention=_normed_heads(fields, True),
        mlp=UNGATED_BIASED,
    )


def _nemotron(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        eps="norm_eps",
        default_eps=1e-5,
        default_activation="relu2",
        share=0.5,
        norms=NormsConfig("layer", offset=1.0),
        attention=biased(fields),
        mlp=mlp_of(fields, gated=False),
    )


def _jais2(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        eps="layer_norm_eps",
        default_eps=1e-5,
        default_activation="relu2",
        norms=LAYER_NORMS,
        attention=biased(fields, True),
        mlp=mlp_of(fields, True, gated=False),
    )


def _opt(fields: Fields) -> ModelConfig:
    fields.require("do_layer_norm_before", True, default=True)
    fields.require("layer_norm_elementwise_affine", True, default=True)
    fields.refuse("_remove_final_layer_norm", True, because="a stream that ends without a norm")
    hidden = fields.integer("hidden_size", 768)
    fields.require("word_embed_proj_dim", hidden, default=hidden)
    named = fields.called({"intermediate_size": "ffn_dim"}, {"intermediate_size": 3072})
    return _learned(named, "activation_function", "relu", fields.flag("enable_bias", True))


def _biogpt(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults({"intermediate_size": 4096, "layer_norm_eps": 1e-12})
    return _scaled(fields, _learned(fields, "hidden_act", "gelu"), "learned")


def _scaled(fields: Fields, config: ModelConfig, positions: PositionTable) -> ModelConfig:
    scale = config.hidden_size**0.5 if fields.flag("scale_embedding", True) else 1.0
    return replace(config, embedding=EmbeddingConfig(scale, positions=positions))


def _xglm(fields: Fields) -> ModelConfig:
    fields.require("add_cross_attention", False, default=False)
    if fields.integer("pad_token_id", 1, minimum=0) > 1:
        raise fields.unsupported(
            "pad_token_id", fields.get("pad_token_id"), "0 or 1, below the first position's number"
        )
    named = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"}
    known = fields.with_entries(**{name: fields.get(name) or fields.get(own) for name, own in named.items()})
    known = known.called({"intermediate_size": "ffn_dim"}, {"intermediate_size": 4096})
    return _scaled(fields, _learned(known, "activation_function", "gelu"), "sinusoid")


def _learned(fields: Fields, activation_key: str, default_activation: str, bias: bool = True) -> ModelConfig:
    """What OPT and BioGPT share."""
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "max_position_embeddings": 2048}
    return base_of(
        fields.with_defaults(sizes),
        tied=True,
        eps="layer_norm_eps",
        default_eps=1e-5,
        activation_key=activation_key,
        default_activation=default_activation,
        layer=UNROTATED,
        ropes=(),
        norms=LAYER_NORMS,
        attention=AttentionConfig(qkv_bias=bias, output_bias=bias),
        mlp=MlpConfig(gated=False, bias=bias),
        embedding=EmbeddingConfig(positions="learned"),
    )


def heads_apart(tensor: Tensor, config: ModelConfig) -> Tensor:
    """[head, (q, k, v), head_dim] along the first axis -> [(q, k, v), head, head_dim]; where several heads share keys
    and values [kv_head, (q of each, k, v), head_dim] -> [q of all, k of all, v of all]."""
    grouped = tensor.reshape(config.num_kv_heads, -1, config.head_dim, *tensor.shape[1:])
    parts = (grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:])
    return torch.cat([part.flatten(0, 2) for part in parts])


_STABLELM = HF_LAYER | {
    "q_norm": "layers.{i}.self_attn.q_layernorm.norms.{h}",
    "k_norm": "layers.{i}.self_attn.k_layernorm.norms.{h}",
}
_DENSE = {
    "output": "layers.{i}.self_attn.dense",
    "q_norm": "layers.{i}.self_attn.q_layernorm",
    "k_norm": "layers.{i}.self_attn.k_layernorm",
}
_FC = {"up": "layers.{i}.mlp.fc1", "down": "layers.{i}.mlp.fc2"}
_PHI = without(HF_LAYER, "mlp_norm", "gate") | _DENSE | _FC
_PERSIMMON = without(HF_LAYER, "q", "k", "v", "gate") | {
    **_DENSE,
    "qkv": "layers.{i}.self_attn.query_key_value",
    "up": "layers.{i}.mlp.dense_h_to_4h",
    "down": "layers.{i}.mlp.dense_4h_to_h",
}
_OPT = TensorLayout(
    prefix="model.decoder.",
    embedding="embed_tokens",
    positions="embed_positions",
    first_position=2,
    final_norm="final_layer_norm",
    head="lm_head",
    layer=LAYER,
)
_FINAL = replace(HF_LAYOUT, final_norm="final_layernorm")

FAMILIES = (
    Family("stablelm", _stablelm, replace(HF_LAYOUT, layer=_STABLELM), Gguf("stablelm", GGUF_LAYOUT)),
    Family(
        "starcoder2",
        _starcoder2,
        replace(HF_LAYOUT, layer=HF_LAYER | {"up": "layers.{i}.mlp.c_fc", "down": "layers.{i}.mlp.c_proj"}),
        Gguf("starcoder2", GGUF_LAYOUT),
    ),
    Family("phi", _phi, replace(_FINAL, layer=_PHI), Gguf("phi2", GGUF_LAYOUT)),
    Family("persimmon", _persimmon, replace(_FINAL, layer=_PERSIMMON, convert={"qkv": heads_apart})),
    Family(
        "nemotron",
        _nemotron,
        HF_LAYOUT,
        Gguf(
            "nemotron",
            replace(GGUF_LAYOUT, convert=dict.fromkeys(("attention_norm", "mlp_norm", "final_norm"), minus_one)),
        ),
    ),
    Family("jais2", _jais2, HF_LAYOUT, Gguf("jais2", GGUF_LAYOUT)),
    Family("opt", _opt, _OPT),
    Family("xglm", _xglm, replace(_OPT, prefix="model.", final_norm="layer_norm", positions="")),
    Family("biogpt", _biogpt, replace(_OPT, prefix="biogpt.", final_norm="layer_norm", head="output_projection")),
)
