"""Mamba, Falcon-Mamba, Jamba and Mamba-2 as GGUF files have them.

Sources: llama.cpp's converter (conversion/mamba.py, jamba.py) for names, metadata, and what is done to values: decays
are stored as they are, below 0, kernels of convolutions as matrices.
"""

from __future__ import annotations

from dataclasses import replace

from headstart.models.config import LayerConfig, ModelConfig, NormsConfig
from headstart.models.families import gguf_states
from headstart.models.families.base import TensorLayout
from headstart.models.families.experts import with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf_mixtures import experts_of
from headstart.models.families.llama import (
    GGUF_LAYER,
    GGUF_LAYOUT,
    base_from_gguf,
    token_ids_from_gguf,
    vocab_size_from_gguf,
)
from headstart.models.state_config import MambaConfig, MambaNorms

NO_POSITIONS = 1 << 20
"""Tokens that a model without positions is taken to reach."""
FALCON_EPS = 1e-6
"""Of Falcon-Mamba's norms inside the mixer; GGUF files do not hold it."""
ALONE = LayerConfig(rope=None, mixer="mamba", channel="none")
BESIDE = LayerConfig(rope=None, mixer="mamba")


def _layers_alone(fields: Fields, family: str, layer: LayerConfig) -> ModelConfig:
    """A model of layers that are a mixer and nothing else."""
    hidden = fields.integer("embedding_length")
    return ModelConfig(
        family=family,
        vocab_size=vocab_size_from_gguf(fields),
        hidden_size=hidden,
        num_heads=1,
        num_kv_heads=1,
        head_dim=hidden,
        mlp_size=1,
        max_positions=NO_POSITIONS,
        layers=(layer,) * fields.integer("block_count", maximum=4096),
        norms=NormsConfig(eps=fields.number("attention.layer_norm_rms_epsilon")),
        **token_ids_from_gguf(fields),
    )


def _mamba_of(fields: Fields, norms: MambaNorms, eps: float) -> MambaConfig:
    return MambaConfig(
        fields.integer("ssm.inner_size"),
        fields.integer("ssm.state_size"),
        fields.integer("ssm.time_step_rank"),
        fields.integer("ssm.conv_kernel", 4, minimum=2),
        norms=norms,
        norm_eps=eps,
    )


def mamba(fields: Fields) -> ModelConfig:
    """Mamba, or Falcon-Mamba."""
    normed = fields.flag("ssm.dt_b_c_rms", False)
    config = _layers_alone(fields, "falcon_mamba" if normed else "mamba", ALONE)
    return replace(config, mamba=_mamba_of(fields, "unlearnt" if normed else "none", FALCON_EPS))


def jamba(fields: Fields) -> ModelConfig:
    """Which layers have experts their tensors say."""
    mixer = _mamba_of(fields, "learnt", fields.number("attention.layer_norm_rms_epsilon"))
    fields, attending = gguf_states.by_layer(fields, gguf_states.KV_HEADS)
    config = base_from_gguf(fields, "jamba", experts=True, mamba=mixer, ropes=())
    layers = tuple(LayerConfig(rope=None) if attends else BESIDE for attends in attending)
    config = replace(config, layers=layers)
    if fields.integer("expert_count", 0, minimum=0) <= 1:
        return config
    return with_experts(config, experts_of(fields, config.mlp_size, False))


def mamba2(fields: Fields) -> ModelConfig:
    layer = LayerConfig(rope=None, mixer="mamba2", channel="none")
    return replace(_layers_alone(fields, "mamba2", layer), mamba2=gguf_states.mamba2_of(fields))


_IN_GGUF = {
    "mamba_input": "blk.{i}.ssm_in",
    "convolution_kernel": "blk.{i}.ssm_conv1d",
    "mamba_selection": "blk.{i}.ssm_x",
    "mamba_step": "blk.{i}.ssm_dt",
    "step_bias": "blk.{i}.ssm_dt.bias",
    "log_decay": "blk.{i}.ssm_a",
    "skip": "blk.{i}.ssm_d",
    "step_norm": "blk.{i}.ssm_dt_norm",
    "where_to_norm": "blk.{i}.ssm_b_norm",
    "from_where_norm": "blk.{i}.ssm_c_norm",
    "mamba_output": "blk.{i}.ssm_out",
}
LAYOUT: TensorLayout = replace(
    GGUF_LAYOUT,
    layer=GGUF_LAYER | gguf_states.STACKS | _IN_GGUF,
    whole=gguf_states.WHOLE,
    flat=gguf_states.FLAT,
    convert={"log_decay": gguf_states.logarithm},
)
MAMBA2 = gguf_states.MAMBA2_LAYOUT
