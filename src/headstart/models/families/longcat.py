"""LongCat-Flash: layers in pairs, of which the first one's experts give what is added behind the second one.

Sources: the configuration and modelling files of transformers (models/longcat_flash); for modules vLLM's loader
(longcat_flash_mtp).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from headstart.models.config import ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family
from headstart.models.families.deepseek import LATENT_LAYER, TURNED, latent_of
from headstart.models.families.experts import BY_EXPERT, layout_with, used_of, with_experts
from headstart.models.families.fields import Fields
from headstart.models.families.rope import rope_of

_NAMES = {
    "intermediate_size": "ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
    "num_experts_per_tok": "moe_topk",
}
_DEFAULTS = {"rms_norm_eps": 1e-5, "num_layers": 28}


def _longcat(fields: Fields) -> ModelConfig:
    fields = fields.called(_NAMES, _DEFAULTS)
    fields = fields.with_entries(num_hidden_layers=2 * fields.integer("num_layers", maximum=2048))
    for key in ("mla_scale_q_lora", "mla_scale_kv_lora"):
        fields.require(key, True, default=True)
    fields.require("zero_expert_type", "identity", default="identity")
    fields.require("norm_topk_prob", False, default=False)
    turning = fields.integer("qk_rope_head_dim", 64)
    rope = rope_of(fields, turning, 1e7, whole_heads=False)
    config = latent_of(fields, 1536, 512, (128, turning, 128), rope)
    if config.latent is None or config.latent.q_rank is None:
        raise fields.bad("q_lora_rank", None, "a whole number")
    count, idle = fields.integer("n_routed_experts", 512), fields.integer("zero_expert_num", 256, minimum=0)
    experts = ExpertsConfig(
        count,
        used_of(fields, count + idle, 12),
        fields.integer("moe_intermediate_size", 2048),
        idle=idle,
        shared_size=config.mlp_size,
        correction=True,
        scale=fields.number("routed_scaling_factor", 6.0),
        router_bias=fields.flag("router_bias", False),
    )
    config = with_experts(config, experts, set(range(1, config.num_layers, 2)))
    return replace(config, layers=tuple(replace(layer, delays=layer.channel == "experts") for layer in config.layers))


def _grown(norm: Tensor, config: ModelConfig, of_queries: bool) -> Tensor:
    """What the small states of queries, or of keys and values, are multiplied by."""
    assert config.latent is not None
    rank = config.latent.q_rank if of_queries else config.latent.kv_rank
    assert rank is not None
    grown: Tensor = norm * (config.hidden_size / rank) ** 0.5
    return grown


def _in_pair(name: str) -> str:
    """Parts of a pair's layers are numbered, but for its experts."""
    part = name.removeprefix("layers.{i}.").split(".")
    return ".".join(("layers.{i.pair}", part[0].replace("mlp", "mlps"), "{i.half}", *part[1:]))


_MLP = {part: f"layers.{{i}}.mlp.{part}_proj" for part in ("gate", "up", "down")}
_OF_EACH = {role: _in_pair(name) for role, name in (LATENT_LAYER | _MLP).items() if role != "q"}
_OF_PAIR = BY_EXPERT | {
    "router": "layers.{i}.mlp.router.classifier",
    "router_correction": "layers.{i}.mlp.router.e_score_correction_bias",
}
_LAYOUT = layout_with(
    {role: name.replace("{i}", "{i.pair}") for role, name in _OF_PAIR.items()}
    | {f"shared_{part}": _OF_EACH[part] for part in _MLP},
    layer=_OF_EACH,
    convert=TURNED | {"q_norm": partial(_grown, of_queries=True), "kv_norm": partial(_grown, of_queries=False)},
    # transformers saves matrices of experts that have none.
    ignored=(r"layers\.\d+\.mlp\.experts\.\d+\.(gate|up)_proj\.weight", *layout_with({}).ignored),
)
FAMILIES = (Family("longcat_flash", _longcat, _LAYOUT, kind="experts"),)
