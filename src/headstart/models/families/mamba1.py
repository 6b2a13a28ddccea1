"""Mamba 1: Mamba, Falcon-Mamba, and Jamba, which has attention and experts in some layers.

Sources: the configuration and modelling files of transformers (models/mamba, falcon_mamba, jamba).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.models.config import LayerConfig, ModelConfig, NormsConfig, OutputHeadConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf, TensorLayout
from headstart.models.families.experts import used_of, with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYOUT, by_layer
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of
from headstart.models.state_config import MambaConfig, MambaNorms

_NO_POSITIONS = 1 << 20
"""Tokens that a model without positions is taken to reach."""
_FALCON_EPS = 1e-6
"""Of Falcon-Mamba's norms inside the mixer; GGUF files do not hold it."""
_ALONE = LayerConfig(rope=None, mixer="mamba", channel="none")
_BESIDE = LayerConfig(rope=None, mixer="mamba")


def layers_alone(fields: Fields, layer: LayerConfig, eps: str) -> ModelConfig:
    """A model of layers that are a mixer and nothing else, by ``config.json``; ``eps``: of its norms' epsilon."""
    return ModelConfig(
        family="",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_heads=1,
        num_kv_heads=1,
        head_dim=fields.integer("hidden_size"),
        mlp_size=1,
        max_positions=_NO_POSITIONS,
        layers=(layer,) * fields.integer("num_hidden_layers", maximum=4096),
        norms=NormsConfig(eps=fields.number(eps, 1e-5)),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _rank(fields: Fields, key: str, hidden: int) -> int:
    return -(-hidden // 16) if fields.get(key) in (None, "auto") else fields.integer(key)


def _mamba(fields: Fields, norms: MambaNorms = "none") -> ModelConfig:
    fields.require("hidden_act", "silu", default="silu")
    hidden = fields.integer("hidden_size")
    mamba = MambaConfig(
        fields.integer("ssm.inner_size", int(fields.number("expand", 2) * hidden)),
        fields.integer("state_size", 16),
        _rank(fields, "time_step_rank", hidden),
        fields.integer("conv_kernel", 4, minimum=2),
        fields.flag("use_conv_bias", True),
        fields.flag("use_bias", False),
        norms,
        fields.number("mixer_rms_eps", _FALCON_EPS),
    )
    config = layers_alone(fields, _ALONE, "layer_norm_epsilon")
    return replace(config, mamba=mamba, head=OutputHeadConfig(fields.flag("tie_word_embeddings", True)))


def _falcon_mamba(fields: Fields) -> ModelConfig:
    return _mamba(fields, "unlearnt")


def _jamba(fields: Fields) -> ModelConfig:
    fields.require("mamba_proj_bias", False, default=False)
    hidden = fields.integer("hidden_size")
    eps = fields.number("rms_norm_eps", 1e-6)
    mamba = MambaConfig(
        fields.integer("ssm.inner_size", fields.integer("mamba_expand", 2) * hidden),
        fields.integer("mamba_d_state", 16),
        _rank(fields, "mamba_dt_rank", hidden),
        fields.integer("mamba_d_conv", 4, minimum=2),
        fields.flag("mamba_conv_bias", True),
        norms="learnt",
        norm_eps=eps,
    )
    config = base_of(fields, default_eps=eps, mamba=mamba, ropes=())
    period, offset = fields.integer("attn_layer_period", 8), fields.integer("attn_layer_offset", 4, minimum=0)
    kinds = fields.get("layers_block_type") or [
        "attention" if index % period == offset else "mamba" for index in range(config.num_layers)
    ]
    layers = (LayerConfig(rope=None) if kind == "attention" else _BESIDE for kind in kinds)
    config = replace(config, layers=tuple(layers))
    count = fields.integer("num_experts", 16)
    if count == 1:
        return config
    every, first = fields.integer("expert_layer_period", 2), fields.integer("expert_layer_offset", 1, minimum=0)
    dense = {index for index in range(config.num_layers) if index % every != first}
    return with_experts(config, ExpertsConfig(count, used_of(fields, count, 2), config.mlp_size), dense)


def _mixer(block: str) -> dict[str, str]:
    """Names of a mixer's tensors in a block of a layer."""
    return {
        "mamba_input": f"layers.{{i}}.{block}.in_proj",
        "convolution_kernel": f"layers.{{i}}.{block}.conv1d",
        "mamba_selection": f"layers.{{i}}.{block}.x_proj",
        "mamba_step": f"layers.{{i}}.{block}.dt_proj",
        "step_bias": f"layers.{{i}}.{block}.dt_proj.bias",
        "log_decay": f"layers.{{i}}.{block}.A_log",
        "skip": f"layers.{{i}}.{block}.D",
        "step_norm": f"layers.{{i}}.{block}.dt_layernorm",
        "where_to_norm": f"layers.{{i}}.{block}.b_layernorm",
        "from_where_norm": f"layers.{{i}}.{block}.c_layernorm",
        "mamba_output": f"layers.{{i}}.{block}.out_proj",
    }


_MAMBA = TensorLayout(
    prefix="backbone.",
    embedding="embeddings",
    final_norm="norm_f",
    head="lm_head",
    layer={"attention_norm": "layers.{i}.norm", **_mixer("mixer")},
)
_MAMBA_LAYOUT = replace(_MAMBA, other=replace(_MAMBA, prefix="model."))
_JAMBA_LAYOUT = replace(
    HF_LAYOUT,
    final_norm="final_layernorm",
    layer={
        **HF_LAYER,
        **_mixer("mamba"),
        "mlp_norm": "layers.{i}.pre_ff_layernorm",
        **{part: f"layers.{{i}}.feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        "router": "layers.{i}.feed_forward.router",
        **{f"expert_{part}": f"layers.{{i}}.feed_forward.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")},
    },
)


def _mamba_or_falcon(fields: Fields) -> ModelConfig:
    """GGUF has one architecture for both."""
    falcon = fields.flag("ssm.dt_b_c_rms", False)
    return replace(_falcon_mamba(fields), family="falcon_mamba") if falcon else _mamba(fields)


def _jamba_entries(fields: Fields) -> dict[str, Any]:
    """Which layers have experts their tensors say."""
    heads, attending = by_layer(fields, "num_key_value_heads")
    return {
        **heads,
        "layers_block_type": ["attention" if each else "mamba" for each in attending],
        "num_experts": fields.integer("num_experts", 0, minimum=0) or 1,
        "expert_layer_period": 1,
        "expert_layer_offset": 0,
    }


_GGUF = Gguf("mamba", GGUF_LAYOUT, {"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}, read=_mamba_or_falcon)
_JAMBA_GGUF = Gguf("jamba", GGUF_LAYOUT, computed=_jamba_entries)

FAMILIES = (
    Family("mamba", _mamba, _MAMBA_LAYOUT, _GGUF),
    Family("falcon_mamba", _falcon_mamba, _MAMBA_LAYOUT, _GGUF),
    Family("jamba", _jamba, _JAMBA_LAYOUT, _JAMBA_GGUF, "experts"),
)
