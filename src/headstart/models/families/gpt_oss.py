"""gpt-oss: experts with biases and cut-off activations, sinks of attention, windows in every other layer.

Sources: the configuration and modelling files of transformers (models/gpt_oss); for the weights in MXFP4 its
integrations/mxfp4.py and the OCP Microscaling specification, version 1.0, section 5.3.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.models.config import ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import WHOLE, Family, Gguf
from headstart.models.families.experts import count_of, with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_NORMED_AFTER
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_of, biased, windowed

_YARN = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0} | {
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss(fields: Fields) -> ModelConfig:
    if fields.get("rope_parameters") is None and fields.get("rope_scaling") is None:
        fields = fields.with_defaults({"rope_parameters": _YARN})
    config = base_of(
        fields,
        default_theta=150_000.0,
        default_head_dim=64,
        default_eps=1e-5,
        attention=replace(biased(fields, True), sinks=True),
    )
    config = windowed(fields, config, fields.integer("sliding_window", 128), lambda index: index % 2 == 0)
    count = count_of(fields, "num_local_experts", "num_experts", default=128)
    if fields.number("swiglu_alpha", 1.702) != 1.702:
        raise fields.unsupported("swiglu_alpha", fields.get("swiglu_alpha"), "1.702")
    experts = ExpertsConfig(
        count,
        fields.integer("num_experts_per_tok", min(4, count), maximum=count),
        # GGUF files have a size of its own.
        fields.integer("expert_feed_forward_length", config.mlp_size),
        normalised=True,
        router_bias=True,
        bias=True,
        clamp=fields.number("swiglu_limit", 7.0),
    )
    return with_experts(config, experts)


def _gates_first(tensor: Tensor, _: ModelConfig) -> Tensor:
    """Rows of gate and up in turns -> all of the gate's first."""
    return torch.cat((tensor[0::2], tensor[1::2]))


def _bias_gates_first(tensor: Tensor, _: ModelConfig) -> Tensor:
    return torch.cat((tensor[:, 0::2], tensor[:, 1::2]), dim=1)


_EXPERTS = {
    "router": "layers.{i}.mlp.router",
    "expert_up": "layers.{i}.mlp.experts.gate_up_proj",
    "expert_up_bias": "layers.{i}.mlp.experts.gate_up_proj_bias",
    "expert_down": "layers.{i}.mlp.experts.down_proj",
    "expert_down_bias": "layers.{i}.mlp.experts.down_proj_bias",
    "sinks": "layers.{i}.self_attn.sinks",
}

FAMILIES = (
    Family(
        "gpt_oss",
        _gpt_oss,
        replace(
            HF_LAYOUT,
            layer=HF_LAYER | _EXPERTS,
            whole=WHOLE | {"expert_up", "expert_down", "sinks"},
            stacks="transposed",
            convert={"expert_up": _gates_first, "expert_up_bias": _bias_gates_first},
        ),
        Gguf("gpt-oss", GGUF_NORMED_AFTER, defaults={"attention_bias": True, "rope.scaling.truncate": False}),
        "experts",
    ),
)
