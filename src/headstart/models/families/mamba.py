"""Mamba-2 by itself, between attention and beside it: Mamba-2, Bamba, Nemotron-H, Falcon-H1;

Sources: the configuration and modelling files of transformers (models/mamba2, bamba, nemotron_h, falcon_h1).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headstart.models.config import EmbeddingConfig, FoldedConfig, LayerConfig, ModelConfig, OutputHeadConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf, TensorLayout
from headstart.models.families.experts import sigmoid_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYER, GGUF_MAMBA2, by_layer, size_of_state_heads
from headstart.models.families.granite import divided
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, biased, mlp_of
from headstart.models.families.mamba1 import layers_alone
from headstart.models.families.mamba2 import MAMBA2_LAYER, mamba2_layer, mamba2_of
from headstart.models.families.rope import rope_of
from headstart.models.state_config import Mamba2Config, StateNorm


def _bamba(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    config = base_of(
        fields,
        rope=rope_of(fields, head_dim // 2, whole_heads=False),
        default_eps=1e-5,
        attention=biased(fields),
        mlp=mlp_of(fields),
        mamba2=mamba2_of(fields.with_defaults({"rms_norm_eps": 1e-5})),
    )
    attending = fields.layers("attn_layer_indices")
    recurrent = LayerConfig(rope=None, mixer="mamba2")
    layers = (LayerConfig() if index in attending else recurrent for index in range(config.num_layers))
    return replace(config, layers=tuple(layers))


def _falcon_h1(fields: Fields) -> ModelConfig:
    """Its factors all go into matrices, the embedding and the final norm."""
    for key in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        fields.require(key, False, default=False)
    inner = fields.integer("mamba_d_ssm", 1024)
    norm: StateNorm = "none"
    if fields.flag("mamba_rms_norm", False):
        norm = "before_gate" if fields.flag("mamba_norm_before_gate", True) else "after_gate"
    mamba = replace(mamba2_of(fields.with_defaults({"rms_norm_eps": 1e-5}), inner), norm=norm)
    config = base_of(
        fields,
        default_eps=1e-5,
        mamba2=mamba,
        embedding=EmbeddingConfig(fields.number("embedding_multiplier", 1.0)),
        folded=FoldedConfig(logit_divisor=1 / fields.number("lm_head_multiplier", 1.0)),
    )
    layers = (LayerConfig(mixer="attention+mamba2"),) * config.num_layers
    return replace(config, layers=layers, folded=replace(config.folded, rows=_falcon_scales(fields, config, mamba)))


def _falcon_scales(
    fields: Fields, config: ModelConfig, mamba: Mamba2Config
) -> tuple[tuple[str, tuple[tuple[int, float], ...]], ...]:
    read = fields.number("attention_in_multiplier", 1.0)
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    gate, down = _numbers(fields, "mlp_multipliers", 2)
    sizes = (mamba.inner, mamba.inner, *[mamba.groups * mamba.state_size] * 2, mamba.heads)
    before = fields.number("ssm_in_multiplier", 1.0)
    within = [before * each for each in _numbers(fields, "ssm_multipliers", 5)]
    scales = (
        ("q", ((q, read),)),
        ("k", ((kv, read * fields.number("key_multiplier", 1.0)),)),
        ("v", ((kv, read),)),
        ("output", ((config.hidden_size, fields.number("attention_out_multiplier", 1.0)),)),
        ("gate", ((config.mlp_size, gate),)),
        ("down", ((config.hidden_size, down),)),
        ("mamba_input", tuple(zip(sizes, within, strict=True))),
        ("mamba_output", ((config.hidden_size, fields.number("ssm_out_multiplier", 1.0)),)),
    )
    # GGUF files have them in their tensors.
    return scales if any(factor != 1 for _, parts in scales for _, factor in parts) else ()


def _numbers(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if fields.get(key) is None else fields.numbers(key, count)


_MAMBA2_NAMES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_proj_bias": "use_bias",
    "rms_norm_eps": "layer_norm_epsilon",
}


def _mamba2(fields: Fields) -> ModelConfig:
    """Layers of Mamba-2 alone."""
    fields.require("hidden_act", "silu", default="silu")
    named = fields.called(
        _MAMBA2_NAMES | {"mamba_n_heads": "num_heads", "mamba_d_head": "head_dim", "mamba_d_state": "state_size"},
        {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8, "rms_norm_eps": 1e-5},
    )
    inner = named.integer("mamba_n_heads", 128) * named.integer("mamba_d_head")
    config = layers_alone(fields, LayerConfig(rope=None, mixer="mamba2", channel="none"), "layer_norm_epsilon")
    return replace(
        config, mamba2=mamba2_of(named, inner), head=OutputHeadConfig(fields.flag("tie_word_embeddings", False))
    )


_PARTS = {
    "linear_attention": LayerConfig(rope=None, mixer="mamba2", channel="none"),
    "full_attention": LayerConfig(rope=None, channel="none"),
    "mlp": LayerConfig(rope=None, mixer="none"),
    "moe": LayerConfig(rope=None, mixer="none", channel="experts"),
}
_OLDER = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"} | {
    "mamba": "linear_attention",
    "attention": "full_attention",
}


def _nemotron_h(fields: Fields) -> ModelConfig:
    kinds = fields.get("layers_block_type") or fields.get("layer_types") or fields.get("hybrid_override_pattern")
    if not isinstance(kinds, list | str) or not kinds:
        raise fields.missing("layers_block_type")
    named = [_OLDER.get(str(each), str(each)) for each in kinds]
    if any(each not in _PARTS for each in named):
        raise fields.bad("layers_block_type", kinds, f"entries each of {', '.join(_PARTS)}")
    fields.require("mamba_hidden_act", "silu", default="silu")
    mixer = fields.called(
        _MAMBA2_NAMES
        | {"mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim", "mamba_d_state": "ssm_state_size"},
        {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8, "rms_norm_eps": 1e-5},
    )
    inner = mixer.integer("mamba_n_heads", 128) * mixer.integer("mamba_d_head")
    # llama.cpp has no least step.
    least = 0.0 if fields.of_gguf else fields.number("time_step_min", 0.001)
    mamba = replace(mamba2_of(mixer, inner), least_step=least, most_step=math.inf)
    config = base_of(
        fields.with_entries(num_hidden_layers=len(named), intermediate_size=fields.get("intermediate_size") or 21504),
        "nemotron_h",
        default_head_dim=128,
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        activation_key="mlp_hidden_act",
        default_activation="relu2",
        mlp=mlp_of(fields, gated=False),
        mamba2=mamba,
        ropes=(),
    )
    return replace(
        config,
        layers=tuple(_PARTS[each] for each in named),
        experts=_nemotron_experts(fields) if "moe" in named else None,
    )


def _nemotron_experts(fields: Fields) -> ExpertsConfig:
    if fields.integer("moe_latent_size", 0, minimum=0):
        raise fields.unsupported("moe_latent_size", fields.get("moe_latent_size"), "left out")
    known = fields.with_defaults({"moe_intermediate_size": 7688})
    shared = fields.integer("moe_shared_expert_intermediate_size", 7688)
    experts = sigmoid_experts(known, fields.integer("n_routed_experts", 8), 2, "n_shared_experts")
    return replace(experts, gated=False, shared_size=shared)


_BAMBA_LAYER = {
    **HF_LAYER,
    **MAMBA2_LAYER,
    "mlp_norm": "layers.{i}.pre_ff_layernorm",
    **{part: f"layers.{{i}}.feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}
_NEMOTRON_LAYER = {
    "attention_norm": "layers.{i}.norm",
    "mlp_norm": "layers.{i}.norm",
    **{part: f"layers.{{i}}.mixer.{part}_proj" for part in ("q", "k", "v", "up", "down")},
    "output": "layers.{i}.mixer.o_proj",
    "router": "layers.{i}.mixer.gate",
    "router_correction": "layers.{i}.mixer.gate.e_score_correction_bias",
    **{f"expert_{part}": f"layers.{{i}}.mixer.experts.{{e}}.{part}_proj" for part in ("up", "down")},
    **{f"shared_{part}": f"layers.{{i}}.mixer.shared_experts.{part}_proj" for part in ("up", "down")},
    **mamba2_layer("mixer"),
}
_NEMOTRON = TensorLayout(
    prefix="backbone.", embedding="embeddings", final_norm="norm_f", head="lm_head", layer=_NEMOTRON_LAYER
)

_NEMOTRON_LAYOUT = replace(_NEMOTRON, other=replace(_NEMOTRON, prefix="model."))

_MAMBA2 = TensorLayout(
    prefix="backbone.",
    embedding="embeddings",
    final_norm="norm_f",
    head="lm_head",
    layer={"attention_norm": "layers.{i}.norm", **mamba2_layer("mixer")},
)

_RMS = {"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}


def _nemotron_entries(fields: Fields) -> dict[str, Any]:
    """Layers of one part: attention where there are heads, a channel part where that has a size, else Mamba-2."""
    heads, attending = by_layer(fields, "num_key_value_heads")
    size, changing = by_layer(fields, "intermediate_size")
    channel = "moe" if fields.integer("n_routed_experts", 0, minimum=0) else "mlp"
    kinds = [
        "full_attention" if attends else channel if changes else "linear_attention"
        for attends, changes in zip(attending, changing, strict=True)
    ]
    return {**heads, **size, "layers_block_type": kinds, "mamba_d_head": size_of_state_heads(fields)}


_NEMOTRON_GGUF = Gguf(
    "nemotron_h",
    replace(GGUF_MAMBA2, layer=GGUF_LAYER | {"mlp_norm": "blk.{i}.attn_norm"}),
    _RMS | {"moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    computed=_nemotron_entries,
)

FAMILIES = (
    Family(
        "mamba2",
        _mamba2,
        replace(_MAMBA2, other=replace(_MAMBA2, prefix="model.")),
        Gguf("mamba2", GGUF_MAMBA2, _RMS, computed=lambda fields: {"mamba_d_head": size_of_state_heads(fields)}),
    ),
    Family(
        "falcon_h1",
        _falcon_h1,
        replace(HF_LAYOUT, final_norm="final_layernorm", layer=_BAMBA_LAYER, convert={"final_norm": divided}),
        Gguf("falcon-h1", GGUF_MAMBA2),
    ),
    Family("bamba", _bamba, replace(HF_LAYOUT, final_norm="final_layernorm", layer=_BAMBA_LAYER)),
    Family("nemotron_h", _nemotron_h, _NEMOTRON_LAYOUT, _NEMOTRON_GGUF),
    Family(
        "nemotron_h_moe",
        _nemotron_h,
        _NEMOTRON_LAYOUT,
        replace(_NEMOTRON_GGUF, architecture="nemotron_h_moe"),
        "experts",
        described_as="",
    ),
)
