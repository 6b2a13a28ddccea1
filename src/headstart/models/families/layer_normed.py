"""Decoders with layer norms and rotations: StableLM, Starcoder2, Phi 1 and 2, Persimmon, Nemotron, Jais 2; and OPT and
BioGPT, whose positions are learnt.

Sources: the configuration and modelling files of transformers (models of these names); for GGUF llama.cpp's converter,
which adds 1 to Nemotron's norms and keeps Persimmon's and Phi's fused matrices one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from headstart.models.config import (
    Activation,
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
from headstart.models.families.base import Family, Parts, TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.llama import (
    GGUF_LAYER,
    GGUF_LAYOUT,
    HF_LAYER,
    HF_LAYOUT,
    activation,
    base_from_gguf,
    base_from_hf,
    biased,
    mlp_of,
)
from headstart.models.families.rope import rope_from_gguf

LAYER_NORMS = NormsConfig("layer")
UNGATED: Parts = {"norms": LAYER_NORMS, "mlp": MlpConfig(gated=False)}
BIASED: Parts = {
    "norms": LAYER_NORMS,
    "mlp": MlpConfig(gated=False, bias=True),
    "attention": AttentionConfig(qkv_bias=True, output_bias=True),
}


def _stablelm(fields: Fields) -> ModelConfig:
    parallel = fields.flag("use_parallel_residual", False)
    return base_from_hf(
        fields,
        "stablelm",
        tied=False,
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
    return base_from_hf(
        fields,
        "starcoder2",
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
    return base_from_hf(
        fields,
        "phi",
        tied=False,
        eps="layer_norm_eps",
        default_eps=1e-5,
        default_activation="gelu_new",
        share=0.5,
        attention=_normed_heads(fields, False),
        **_PHI_PARTS,
    )


def _normed_heads(fields: Fields, default: bool) -> AttentionConfig:
    norm = HeadNorms("layer", bias=True) if fields.flag("qk_layernorm", default) else None
    return AttentionConfig(qkv_bias=True, output_bias=True, qk_norm=norm)


_PHI_PARTS: Parts = {
    "norms": NormsConfig("layer", shared=True),
    "mlp": MlpConfig(gated=False, bias=True),
    "residual": ResidualConfig(parallel=True),
    "head": OutputHeadConfig(bias=True),
}


def _persimmon(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "persimmon",
        tied=False,
        default_theta=25_000.0,
        eps="layer_norm_eps",
        default_eps=1e-5,
        default_activation="relu2",
        share=0.5,
        norms=LAYER_NORMS,
        attention=_normed_heads(fields, True),
        mlp=MlpConfig(gated=False, bias=True),
    )


def _nemotron(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "nemotron",
        tied=False,
        eps="norm_eps",
        default_eps=1e-5,
        default_activation="relu2",
        share=0.5,
        norms=NormsConfig("layer", offset=1.0),
        attention=biased(fields),
        mlp=mlp_of(fields, gated=False),
    )


def _jais2(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "jais2",
        tied=False,
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
    return _learned(
        fields,
        "opt",
        mlp_size=fields.integer("ffn_dim", 3072),
        activation=activation(fields, "activation_function", "relu"),
        bias=fields.flag("enable_bias", True),
    )


def _biogpt(fields: Fields) -> ModelConfig:
    config = _learned(
        fields,
        "biogpt",
        mlp_size=fields.integer("intermediate_size", 4096),
        activation=activation(fields, "hidden_act", "gelu"),
        eps=fields.number("layer_norm_eps", 1e-12),
    )
    return replace(config, embedding=_scaled(fields, config, "learned"))


def _scaled(fields: Fields, config: ModelConfig, positions: PositionTable) -> EmbeddingConfig:
    return EmbeddingConfig(
        config.hidden_size**0.5 if fields.flag("scale_embedding", True) else 1.0, positions=positions
    )


def _xglm(fields: Fields) -> ModelConfig:
    fields.require("add_cross_attention", False, default=False)
    if fields.integer("pad_token_id", 1, minimum=0) > 1:
        raise fields.unsupported(
            "pad_token_id", fields.get("pad_token_id"), "0 or 1, below the first position's number"
        )
    named = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"}
    known = fields.with_entries(**{name: fields.get(name) or fields.get(own) for name, own in named.items()})
    config = _learned(
        known,
        "xglm",
        mlp_size=fields.integer("ffn_dim", 4096),
        activation=activation(fields, "activation_function", "gelu"),
    )
    return replace(config, embedding=_scaled(fields, config, "sinusoid"))


def _learned(
    fields: Fields, family: str, mlp_size: int, activation: Activation, bias: bool = True, eps: float = 1e-5
) -> ModelConfig:
    """What OPT and BioGPT share."""
    hidden = fields.integer("hidden_size", 768)
    heads = fields.integer("num_attention_heads", 12)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        mlp_size=mlp_size,
        max_positions=fields.integer("max_position_embeddings", 2048),
        layers=(LayerConfig(rope=None),) * fields.integer("num_hidden_layers", 12, maximum=4096),
        embedding=EmbeddingConfig(positions="learned"),
        head=OutputHeadConfig(tied=fields.flag("tie_word_embeddings", True)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
        norms=NormsConfig("layer", eps),
        attention=AttentionConfig(qkv_bias=bias, output_bias=bias),
        mlp=MlpConfig(activation, gated=False, bias=bias),
    )


def heads_apart(tensor: Tensor, config: ModelConfig) -> Tensor:
    """[head, (q, k, v), head_dim] along the first axis -> [(q, k, v), head, head_dim]; where several heads share keys
    and values [kv_head, (q of each, k, v), head_dim] -> [q of all, k of all, v of all]."""
    grouped = tensor.reshape(config.num_kv_heads, -1, config.head_dim, *tensor.shape[1:])
    parts = (grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:])
    return torch.cat([part.flatten(0, 2) for part in parts])


def _stablelm_gguf(fields: Fields) -> ModelConfig:
    parallel = fields.flag("use_parallel_residual", False)
    return _base_gguf(
        fields, "stablelm", norms=NormsConfig("layer", shared=parallel), residual=ResidualConfig(parallel=parallel)
    )


def _starcoder2_gguf(fields: Fields) -> ModelConfig:
    return _base_gguf(
        fields,
        "starcoder2",
        norms=LAYER_NORMS,
        attention=BIASED["attention"],
        mlp=MlpConfig("gelu_tanh", gated=False, bias=True),
    )


def _phi_gguf(fields: Fields) -> ModelConfig:
    config = _base_gguf(fields, "phi", attention=BIASED["attention"], **_PHI_PARTS)
    return replace(config, mlp=replace(config.mlp, activation="gelu_tanh"))


def _nemotron_gguf(fields: Fields) -> ModelConfig:
    norms = NormsConfig("layer", offset=1.0)
    return _base_gguf(fields, "nemotron", norms=norms, mlp=MlpConfig("relu2", gated=False))


def _jais2_gguf(fields: Fields) -> ModelConfig:
    return _base_gguf(fields, "jais2", norms=LAYER_NORMS, mlp=MlpConfig("relu2", gated=False))


def _base_gguf(fields: Fields, family: str, **parts: Unpack[Parts]) -> ModelConfig:
    head_dim = fields.integer("embedding_length") // fields.integer("attention.head_count")
    rope = rope_from_gguf(fields, fields.integer("rope.dimension_count", head_dim))
    return base_from_gguf(fields, family, rope=rope, eps="attention.layer_norm_epsilon", **parts)


def _minus_one(weight: Tensor, _: ModelConfig) -> Tensor:
    return weight - 1


def without(layer: dict[str, str], *roles: str) -> dict[str, str]:
    """The names of the other roles."""
    return {role: name for role, name in layer.items() if role not in roles}


_HF_UNGATED = without(HF_LAYER, "gate")
_GGUF_UNGATED = without(GGUF_LAYER, "gate")
_STABLELM = HF_LAYER | {
    "q_norm": "layers.{i}.self_attn.q_layernorm.norms.{h}",
    "k_norm": "layers.{i}.self_attn.k_layernorm.norms.{h}",
}
_PHI = {
    "attention_norm": "layers.{i}.input_layernorm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "q_norm": "layers.{i}.self_attn.q_layernorm",
    "k_norm": "layers.{i}.self_attn.k_layernorm",
    "output": "layers.{i}.self_attn.dense",
    "up": "layers.{i}.mlp.fc1",
    "down": "layers.{i}.mlp.fc2",
}
_PERSIMMON = {
    "attention_norm": "layers.{i}.input_layernorm",
    "qkv": "layers.{i}.self_attn.query_key_value",
    "q_norm": "layers.{i}.self_attn.q_layernorm",
    "k_norm": "layers.{i}.self_attn.k_layernorm",
    "output": "layers.{i}.self_attn.dense",
    "mlp_norm": "layers.{i}.post_attention_layernorm",
    "up": "layers.{i}.mlp.dense_h_to_4h",
    "down": "layers.{i}.mlp.dense_4h_to_h",
}
_LEARNED = {
    "attention_norm": "layers.{i}.self_attn_layer_norm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "output": "layers.{i}.self_attn.out_proj",
    "mlp_norm": "layers.{i}.final_layer_norm",
    "up": "layers.{i}.fc1",
    "down": "layers.{i}.fc2",
}
_OPT = TensorLayout(
    prefix="model.decoder.",
    embedding="embed_tokens",
    positions="embed_positions",
    first_position=2,
    final_norm="final_layer_norm",
    head="lm_head",
    layer=_LEARNED,
)
_FINAL = replace(HF_LAYOUT, final_norm="final_layernorm")

FAMILIES = (
    Family(
        "stablelm",
        "stablelm",
        "stablelm",
        _stablelm,
        _stablelm_gguf,
        replace(HF_LAYOUT, layer=_STABLELM),
        GGUF_LAYOUT,
    ),
    Family(
        "starcoder2",
        "starcoder2",
        "starcoder2",
        _starcoder2,
        _starcoder2_gguf,
        replace(HF_LAYOUT, layer=_HF_UNGATED | {"up": "layers.{i}.mlp.c_fc", "down": "layers.{i}.mlp.c_proj"}),
        replace(GGUF_LAYOUT, layer=_GGUF_UNGATED),
    ),
    Family(
        "phi", "phi", "phi2", _phi, _phi_gguf, replace(_FINAL, layer=_PHI), replace(GGUF_LAYOUT, layer=_GGUF_UNGATED)
    ),
    Family(
        "persimmon",
        "persimmon",
        "",
        _persimmon,
        None,
        replace(_FINAL, layer=_PERSIMMON, convert={"qkv": heads_apart}),
        None,
    ),
    Family(
        "nemotron",
        "nemotron",
        "nemotron",
        _nemotron,
        _nemotron_gguf,
        replace(HF_LAYOUT, layer=_HF_UNGATED),
        replace(
            GGUF_LAYOUT,
            layer=_GGUF_UNGATED,
            convert=dict.fromkeys(("attention_norm", "mlp_norm", "final_norm"), _minus_one),
        ),
    ),
    Family(
        "jais2",
        "jais2",
        "jais2",
        _jais2,
        _jais2_gguf,
        replace(HF_LAYOUT, layer=_HF_UNGATED),
        replace(GGUF_LAYOUT, layer=_GGUF_UNGATED),
    ),
    Family("opt", "opt", "", _opt, None, _OPT, None),
    Family(
        "xglm", "xglm", "", _xglm, None, replace(_OPT, prefix="model.", final_norm="layer_norm", positions=""), None
    ),
    Family(
        "biogpt",
        "biogpt",
        "",
        _biogpt,
        None,
        replace(_OPT, prefix="biogpt.", final_norm="layer_norm", head="output_projection"),
        None,
    ),
)
