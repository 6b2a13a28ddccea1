"""Models with states as GGUF files have them: LFM2, Granite 4 H, Nemotron-H, Falcon-H1, Qwen3-Next, Qwen3.5.

Sources: llama.cpp's converter (conversion/lfm2.py, mamba.py, granite.py, nemotron.py, falcon_h1.py, qwen.py) for names,
metadata, and what is done to values. Layers that keep states are told from others by their number of key-value heads,
which is 0, or by a period. Decays are stored as they are, below 0, not as logarithms; one-channel kernels as matrices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.models.config import AttentionConfig, ExpertsConfig, HeadNorms, LayerConfig, MlpConfig, ModelConfig
from headstart.models.families import gguf_mixtures
from headstart.models.families.base import TensorLayout
from headstart.models.families.experts import with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf_layers import without_guessing_layers
from headstart.models.families.gguf_mixtures import experts_of
from headstart.models.families.granite import divided, scaled_from_gguf
from headstart.models.families.llama import GGUF_INTERLEAVED, GGUF_LAYER, GGUF_LAYOUT, base_from_gguf
from headstart.models.families.rope import rope_from_gguf
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config

KV_HEADS, _MLP = "attention.head_count_kv", "feed_forward_length"


def by_layer(fields: Fields, key: str) -> tuple[Fields, list[bool]]:
    """The description with the one number that an entry has in layers where it is not 0, and where that is."""
    values = fields.get(key)
    count = fields.integer("block_count", maximum=4096)
    if not isinstance(values, list):
        return fields, [True] * count
    numbers = [value for value in values if isinstance(value, int)]
    some = {value for value in numbers if value}
    if len(numbers) < len(values) or len(values) < count or len(some) > 1:
        raise fields.bad(key, values, f"{count} whole numbers, all the same but for zeros")
    changed: dict[str, Any] = {key: max(some, default=1)}
    return fields.with_entries(**changed), [value > 0 for value in numbers[:count]]


def _lfm2_base(fields: Fields, family: str) -> ModelConfig:
    fields, attending = by_layer(fields, KV_HEADS)
    convolution = ConvolutionConfig(fields.integer("shortconv.l_cache", 3, minimum=2))
    config = base_from_gguf(
        fields,
        family,
        default_theta=1e6,
        experts=True,
        attention=AttentionConfig(qk_norm=HeadNorms()),
        convolution=convolution,
    )
    layers = (LayerConfig() if attends else LayerConfig(rope=None, mixer="convolution") for attends in attending)
    return replace(config, layers=tuple(layers))


def lfm2(fields: Fields) -> ModelConfig:
    return _lfm2_base(fields, "lfm2")


def lfm2_moe(fields: Fields) -> ModelConfig:
    config = _lfm2_base(fields, "lfm2_moe")
    size = fields.integer("expert_feed_forward_length")
    experts = experts_of(fields, size, True, score="sigmoid", correction=True)
    return with_experts(config, experts, set(range(fields.integer("leading_dense_block_count", 0, minimum=0))))


def mamba2_of(fields: Fields) -> Mamba2Config:
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    groups = fields.integer("ssm.group_count", 1)
    if inner % heads or heads % groups:
        raise fields.bad("ssm.time_step_rank", heads, f"a divisor of {inner} and a multiple of {groups}")
    return Mamba2Config(
        heads,
        inner // heads,
        fields.integer("ssm.state_size"),
        groups,
        fields.integer("ssm.conv_kernel", 4, minimum=2),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
    )


def granite_hybrid(fields: Fields) -> ModelConfig:
    """Dense, or with experts."""
    mamba = mamba2_of(fields)
    fields, attending = by_layer(fields, KV_HEADS)
    count = fields.integer("expert_count", 0, minimum=0)
    shared = fields.integer("expert_shared_feed_forward_length", 0, minimum=0)
    size = fields.integer(_MLP) if count or not shared else shared
    config = scaled_from_gguf(fields.with_entries(feed_forward_length=size), "granite4_h", experts=True)
    attention = config.layers[0]
    layers = tuple(attention if attends else LayerConfig(rope=None, mixer="mamba2") for attends in attending)
    config = replace(config, layers=layers, mamba2=mamba)
    if not count:
        return config
    experts = experts_of(fields, size, True, shared_size=shared)
    return with_experts(replace(config, family="granite4_h_moe"), experts)


def nemotron_h(fields: Fields) -> ModelConfig:
    """Layers of one part: attention where there are heads, a channel part where that has a size, else Mamba-2."""
    fields = without_guessing_layers(fields)
    mamba = mamba2_of(fields)
    fields, attending = by_layer(fields, KV_HEADS)
    fields, changing = by_layer(fields, _MLP)
    count = fields.integer("expert_count", 0, minimum=0)
    config = base_from_gguf(
        fields,
        "nemotron_h_moe" if count else "nemotron_h",
        experts=True,
        mlp=MlpConfig("relu2", gated=False),
        mamba2=mamba,
        ropes=(),
    )
    channel = LayerConfig(rope=None, mixer="none", channel="experts" if count else "mlp")
    attention, recurrence = LayerConfig(rope=None, channel="none"), LayerConfig(None, None, "mamba2", "none")
    layers = tuple(
        attention if attends else channel if changes else recurrence
        for attends, changes in zip(attending, changing, strict=True)
    )
    return replace(config, layers=layers, experts=_nemotron_experts(fields) if count else None)


def _nemotron_experts(fields: Fields) -> ExpertsConfig:
    fields.require("expert_group_count", 1, default=1)
    fields.refuse("moe_latent_size", *range(1, 1 << 16), because="experts of another width than the layers'")
    return experts_of(
        fields,
        fields.integer("expert_feed_forward_length"),
        fields.flag("expert_weights_norm", True),
        gated=False,
        shared_size=fields.integer("expert_shared_feed_forward_length"),
        score="sigmoid",
        correction=True,
        scale=fields.number("expert_weights_scale", 1.0),
    )


def falcon_h1(fields: Fields) -> ModelConfig:
    """Its factors have been put into the tensors. A norm of what states give is not read: files do not say where it
    stands."""
    mamba = replace(mamba2_of(fields), norm="none")
    config = base_from_gguf(fields, "falcon_h1", mamba2=mamba)
    return replace(config, layers=(LayerConfig(mixer="attention+mamba2"),) * config.num_layers)


def _delta(fields: Fields, tiled: bool) -> DeltaConfig:
    heads, values = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    keys = fields.integer("ssm.group_count")
    if values % heads or heads % keys:
        raise fields.bad("ssm.time_step_rank", heads, f"a divisor of {values} and a multiple of {keys}")
    return DeltaConfig(
        keys,
        heads,
        fields.integer("ssm.state_size"),
        values // heads,
        fields.integer("ssm.conv_kernel", 4, minimum=2),
        fields.number("attention.layer_norm_rms_epsilon"),
        tiled,
    )


def _qwen(fields: Fields, family: str, tiled: bool) -> ModelConfig:
    fields = without_guessing_layers(fields)
    config = base_from_gguf(
        # Where all layers have experts, there is no other size.
        fields.with_entries(feed_forward_length=fields.get(_MLP) or 1),
        family,
        rope=rope_from_gguf(fields, fields.integer("rope.dimension_count")),
        experts=True,
        attention=AttentionConfig(qk_norm=HeadNorms(), gate="element"),
        delta=_delta(fields, tiled),
    )
    every = fields.integer("full_attention_interval", 4)
    layers = (
        LayerConfig() if (index + 1) % every == 0 else LayerConfig(rope=None, mixer="delta")
        for index in range(config.num_layers)
    )
    config = replace(config, layers=tuple(layers))
    return with_experts(config, _qwen_experts(fields)) if fields.integer("expert_count", 0, minimum=0) else config


def _qwen_experts(fields: Fields) -> ExpertsConfig:
    shared = fields.integer("expert_shared_feed_forward_length")
    return experts_of(fields, fields.integer("expert_feed_forward_length"), True, shared_size=shared, shared_gate=True)


def qwen3_next(fields: Fields) -> ModelConfig:
    return _qwen(fields, "qwen3_next", tiled=False)


def qwen3_5(fields: Fields) -> ModelConfig:
    return _qwen(fields, "qwen3_5", tiled=True)


def qwen3_5_moe(fields: Fields) -> ModelConfig:
    return _qwen(fields, "qwen3_5_moe", tiled=True)


def logarithm(decay: Tensor, _: ModelConfig) -> Tensor:
    return (-decay).log()


def _heads_by_one(config: ModelConfig) -> tuple[int, ...]:
    assert config.mamba2 is not None
    return config.mamba2.heads, 1


def _groups(config: ModelConfig) -> tuple[int, ...]:
    assert config.mamba2 is not None
    return config.mamba2.groups, config.mamba2.inner // config.mamba2.groups


RECURRENT = {
    "convolution_kernel": "blk.{i}.ssm_conv1d",
    "step_bias": "blk.{i}.ssm_dt.bias",
    "log_decay": "blk.{i}.ssm_a",
    "state_norm": "blk.{i}.ssm_norm",
}
_MAMBA2 = RECURRENT | {
    "skip": "blk.{i}.ssm_d",
    "mamba_input": "blk.{i}.ssm_in",
    "mamba_output": "blk.{i}.ssm_out",
}
WHOLE = gguf_mixtures.LAYOUT.whole | {"step_bias", "log_decay", "skip"}
FLAT = gguf_mixtures.LAYOUT.flat | {"convolution_kernel"}
STACKS = {role: name for role, name in gguf_mixtures.LAYOUT.layer.items() if role not in GGUF_LAYER}

LFM2: TensorLayout = replace(
    GGUF_LAYOUT,
    final_norm="token_embd_norm",
    layer=GGUF_LAYER
    | STACKS
    | {
        "convolution_input": "blk.{i}.shortconv.in_proj",
        "convolution_kernel": "blk.{i}.shortconv.conv",
        "convolution_output": "blk.{i}.shortconv.out_proj",
    },
    whole=gguf_mixtures.LAYOUT.whole,
    flat=FLAT,
)
MAMBA2_LAYOUT: TensorLayout = replace(
    GGUF_LAYOUT,
    layer=GGUF_LAYER | STACKS | _MAMBA2,
    whole=WHOLE,
    flat=FLAT,
    folded={"log_decay": _heads_by_one, "skip": _heads_by_one, "state_norm": _groups},
    convert={"log_decay": logarithm},
    beyond=True,
)
FALCON_H1 = MAMBA2_LAYOUT
GRANITE_HYBRID: TensorLayout = replace(
    MAMBA2_LAYOUT,
    convert={**MAMBA2_LAYOUT.convert, **GGUF_INTERLEAVED.convert, "final_norm": divided},
)
NEMOTRON_H: TensorLayout = replace(
    MAMBA2_LAYOUT,
    layer={
        **{role: name for role, name in MAMBA2_LAYOUT.layer.items() if not role.endswith("gate")},
        "mlp_norm": "blk.{i}.attn_norm",
    },
)
