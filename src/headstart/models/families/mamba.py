"""Mamba-2 beside attention: Bamba and Nemotron-H. (Granite 4 H is in ``granite``.)

Sources: the configuration and modelling files of transformers (models/bamba, nemotron_h).
"""

from __future__ import annotations

import math
from dataclasses import replace

from headstart.models.config import ExpertsConfig, LayerConfig, Mamba2Config, ModelConfig
from headstart.models.families.base import Family, TensorLayout
from headstart.models.families.experts import used_of
from headstart.models.families.fields import Fields
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, activation, base_from_hf
from headstart.models.families.rope import rope_from_hf


def mamba2_from_hf(fields: Fields) -> Mamba2Config:
    """As Bamba and Granite describe it."""
    heads, inner = (
        fields.integer("mamba_n_heads", 128),
        fields.integer("mamba_expand", 2) * fields.integer("hidden_size"),
    )
    named = fields.get("mamba_d_head")
    head_dim = inner // heads if named in (None, "auto") else fields.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise fields.bad("mamba_n_heads", heads, f"a number of heads of size {head_dim} that make up {inner}")
    least, most = _limits(fields)
    return _checked(
        fields,
        "mamba_n_groups",
        Mamba2Config(
            heads,
            head_dim,
            fields.integer("mamba_d_state", 256),
            fields.integer("mamba_n_groups", 1),
            fields.integer("mamba_d_conv", 4, minimum=2),
            fields.flag("mamba_conv_bias", True),
            fields.flag("mamba_proj_bias", False),
            least,
            most,
            fields.number("rms_norm_eps", 1e-6),
        ),
    )


def _limits(fields: Fields) -> tuple[float, float]:
    limits = fields.get("time_step_limit")
    if limits is None:
        return 0.0, math.inf
    numbers = [_number(each) for each in limits] if isinstance(limits, list) else []
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise fields.bad("time_step_limit", limits, "two numbers, the lower one first")
    return numbers[0], numbers[1]


def _number(value: object) -> float:
    """JSON has no infinity; transformers writes an object for it, others a text. Not a number: nothing of the kind."""
    value = value.get("__float__") if isinstance(value, dict) else value
    if isinstance(value, str):
        return math.inf if value.lower() in ("inf", "infinity") else math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def _checked(fields: Fields, key: str, mamba: Mamba2Config) -> Mamba2Config:
    if mamba.heads % mamba.groups:
        raise fields.bad(key, mamba.groups, f"a divisor of the {mamba.heads} heads")
    return mamba


def _bamba(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(
        fields,
        "bamba",
        tied=False,
        rope=rope_from_hf(fields, head_dim // 2, whole_heads=False),
        default_eps=1e-5,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        mamba2=mamba2_from_hf(fields.with_entries(rms_norm_eps=fields.number("rms_norm_eps", 1e-5))),
    )
    attending = fields.get("attn_layer_indices") or []
    if not isinstance(attending, list) or not all(isinstance(each, int) for each in attending):
        raise fields.bad("attn_layer_indices", attending, "a list of layers")
    kinds = ("attention" if index in attending else "mamba2" for index in range(config.num_layers))
    layers = (LayerConfig() if kind == "attention" else LayerConfig(rope=None, mixer="mamba2") for kind in kinds)
    return replace(config, layers=tuple(layers))


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
    named = [_OLDER.get(each, each) for each in kinds]
    if any(each not in _PARTS for each in named):
        raise fields.bad("layers_block_type", kinds, f"entries each of {', '.join(_PARTS)}")
    bias = fields.flag("use_bias", False)
    heads, groups = fields.integer("mamba_num_heads", 128), fields.integer("n_groups", 8)
    fields.require("mamba_hidden_act", "silu", default="silu")
    eps = fields.number("layer_norm_epsilon", 1e-5)
    mamba = Mamba2Config(
        heads,
        fields.integer("mamba_head_dim", 64),
        fields.integer("ssm_state_size", 128),
        groups,
        fields.integer("conv_kernel", 4, minimum=2),
        fields.flag("use_conv_bias", True),
        bias,
        fields.number("time_step_min", 0.001),
        math.inf,
        eps,
    )
    config = base_from_hf(
        fields.with_entries(num_hidden_layers=len(named), intermediate_size=fields.get("intermediate_size") or 21504),
        "nemotron_h",
        tied=False,
        default_head_dim=128,
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        activation=activation(fields, "mlp_hidden_act", "relu2"),
        gated_mlp=False,
        mlp_bias=fields.flag("mlp_bias", False),
        mamba2=_checked(fields, "n_groups", mamba),
        ropes=(),
    )
    return replace(
        config,
        layers=tuple(_PARTS[each] for each in named),
        experts=_nemotron_experts(fields) if "moe" in named else None,
    )


def _nemotron_experts(fields: Fields) -> ExpertsConfig:
    if fields.get("moe_latent_size") is not None:
        raise fields.unsupported("moe_latent_size", fields.get("moe_latent_size"), "left out")
    count, groups = fields.integer("n_routed_experts", 8), fields.integer("n_group", 1)
    return ExpertsConfig(
        count,
        used_of(fields, count, 2),
        fields.integer("moe_intermediate_size", 7688),
        gated=False,
        shared_size=fields.integer("moe_shared_expert_intermediate_size", 7688),
        score="sigmoid",
        correction=True,
        groups=groups,
        groups_used=fields.integer("topk_group", 1, maximum=groups),
        group_score="two_best",
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
    )


def _mamba2_layer(block: str) -> dict[str, str]:
    """Names of a mixer's tensors in a block of a layer."""
    return {
        "mamba_input": f"layers.{{i}}.{block}.in_proj",
        "convolution_kernel": f"layers.{{i}}.{block}.conv1d",
        "step_bias": f"layers.{{i}}.{block}.dt_bias",
        "log_decay": f"layers.{{i}}.{block}.A_log",
        "skip": f"layers.{{i}}.{block}.D",
        "state_norm": f"layers.{{i}}.{block}.norm",
        "mamba_output": f"layers.{{i}}.{block}.out_proj",
    }


MAMBA2_LAYER = _mamba2_layer("mamba")
MAMBA2_WHOLE = frozenset({"step_bias", "log_decay", "skip"})
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
    **_mamba2_layer("mixer"),
}
_NEMOTRON = TensorLayout(
    prefix="backbone.",
    embedding="embeddings",
    final_norm="norm_f",
    head="lm_head",
    layer=_NEMOTRON_LAYER,
    whole=MAMBA2_WHOLE | {"router_correction"},
    ignored=(r"mtp\..*",),
)

FAMILIES = (
    Family(
        "bamba",
        "bamba",
        "",
        _bamba,
        None,
        replace(HF_LAYOUT, final_norm="final_layernorm", layer=_BAMBA_LAYER, whole=MAMBA2_WHOLE),
        None,
    ),
    Family(
        "nemotron_h",
        "nemotron_h",
        "",
        _nemotron_h,
        None,
        replace(_NEMOTRON, other=replace(_NEMOTRON, prefix="model.")),
        None,
    ),
)
