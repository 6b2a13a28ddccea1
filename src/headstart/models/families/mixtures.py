"""Mixtures of experts around the attention of Llama's kin: Mixtral, Qwen 2 and 3, OLMoE, FlexOlmo, Phi-3.5, Granite,
MiniMax-M2, Hunyuan, ERNIE 4.5, EXAONE, Mellum, Solar, GLM-4.5, dots.

Sources: the configuration and modelling files of transformers (models of these names with "moe"); for GGUF llama.cpp's
converter, which stacks the experts of a layer in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headstart.models.config import ExpertsConfig, HeadNorms, LayerConfig, ModelConfig
from headstart.models.families import gguf_mixtures as gguf
from headstart.models.families.base import Family, TensorLayout
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf_mixtures import with_experts
from headstart.models.families.granite import GRANITE_EXPERTS, divided, scaled_from_hf
from headstart.models.families.kin import HF_INTERLEAVED, POST_NORMS, exaone_layers, hunyuan_rope
from headstart.models.families.layer_normed import without
from headstart.models.families.llama import HF_LAYER, HF_LAYOUT, base_from_hf, qwen_windows, windows_from_hf
from headstart.models.families.phi import longrope_of
from headstart.models.families.rope import rope_from_hf, rotated_share


def count_of(fields: Fields, *keys: str, default: int | None = None) -> int:
    """A number of experts, by whichever name it has."""
    return fields.integer(next((key for key in keys if fields.get(key) is not None), keys[0]), default)


def _chosen(fields: Fields, count: int, default: int) -> int:
    return fields.integer("num_experts_per_tok", min(default, count), maximum=count)


def _mixtral(fields: Fields) -> ModelConfig:
    config = base_from_hf(fields, "mixtral", tied=False, default_theta=1e6, default_eps=1e-5)
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    config = replace(config, layers=(LayerConfig(window),) * config.num_layers)
    count = fields.integer("num_local_experts", 8)
    return with_experts(config, ExpertsConfig(count, _chosen(fields, count, 2), config.mlp_size, normalised=True))


def _minimax_m2(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    dim = fields.optional_integer("rotary_dim") or int(head_dim * rotated_share(fields, 1.0))
    rope = rope_from_hf(fields, dim, 5e6, whole_heads=False)
    config = base_from_hf(fields, "minimax_m2", tied=False, rope=rope, qk_norm=HeadNorms(reach="all"))
    count = fields.integer("num_local_experts", 256)
    experts = ExpertsConfig(
        count, _chosen(fields, count, 8), config.mlp_size, score="sigmoid", correction=True, normalised=True
    )
    return with_experts(config, experts)


def _phimoe(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    rope = longrope_of(fields, default_theta=1e6)
    config = base_from_hf(
        fields,
        "phimoe",
        tied=False,
        rope=rope,
        default_eps=1e-5,
        norm="layer",
        qkv_bias=bias,
        output_bias=bias,
        head_bias=fields.flag("lm_head_bias", False),
    )
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    config = replace(config, layers=(LayerConfig(window),) * config.num_layers)
    if fields.number("router_jitter_noise", 0.01) != 0.01:
        raise fields.bad("router_jitter_noise", fields.get("router_jitter_noise"), "0.01")
    count = fields.integer("num_local_experts", 16)
    fields.require("num_experts_per_tok", 2, default=2)
    return with_experts(config, ExpertsConfig(count, 2, config.mlp_size, score="sparsemixer"))


def _qwen2_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("qkv_bias", True)
    config = qwen_windows(fields, base_from_hf(fields, "qwen2_moe", tied=False, qkv_bias=bias))
    return _qwen_experts(
        fields,
        config,
        shared_size=fields.integer("shared_expert_intermediate_size", 5632),
        shared_gate=True,
        size=fields.integer("moe_intermediate_size", 1408),
        count=count_of(fields, "num_experts", "num_local_experts", default=60),
        used=4,
    )


def _qwen3_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(fields, "qwen3_moe", tied=False, qk_norm=HeadNorms(), qkv_bias=bias, output_bias=bias)
    if fields.flag("use_sliding_window", False):
        window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
        config = replace(config, layers=(LayerConfig(window),) * config.num_layers)
    return _qwen_experts(
        fields,
        config,
        size=fields.integer("moe_intermediate_size", 768),
        count=count_of(fields, "num_experts", "num_local_experts", default=128),
        used=8,
    )


def _qwen_experts(fields: Fields, config: ModelConfig, count: int, size: int, used: int, **more: Any) -> ModelConfig:
    step = fields.integer("decoder_sparse_step", 1)
    named = fields.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(isinstance(each, int) for each in named):
        raise fields.bad("mlp_only_layers", named, "a list of layers")
    dense = {i for i in range(config.num_layers) if i in named or (i + 1) % step}
    normalised = fields.flag("norm_topk_prob", False)
    experts = ExpertsConfig(count, _chosen(fields, count, used), size, normalised=normalised, **more)
    return with_experts(config, experts, dense)


def _olmoe(fields: Fields) -> ModelConfig:
    return _olmo_experts(fields, "olmoe", pre_norms=True, default_eps=1e-5, theta=10_000.0, experts=(64, 8))


def _flex_olmo(fields: Fields) -> ModelConfig:
    return _olmo_experts(fields, "flex_olmo", pre_norms=False, default_eps=1e-6, theta=500_000.0, experts=(7, 5))


def _olmo_experts(
    fields: Fields, family: str, pre_norms: bool, default_eps: float, theta: float, experts: tuple[int, int]
) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(
        fields,
        family,
        tied=False,
        default_theta=theta,
        default_eps=default_eps,
        pre_norms=pre_norms,
        post_norms=not pre_norms,
        qk_norm=HeadNorms(reach="all"),
        qkv_clip=fields.optional_number("clip_qkv"),
        qkv_bias=bias,
        output_bias=bias,
    )
    count = count_of(fields, "num_experts", "num_local_experts", default=experts[0])
    used = _chosen(fields, count, experts[1])
    normalised = fields.flag("norm_topk_prob", False)
    return with_experts(config, ExpertsConfig(count, used, config.mlp_size, normalised=normalised))


def _granitemoe(fields: Fields) -> ModelConfig:
    return _granite_experts(fields, "granitemoe", 0)


def _granitemoeshared(fields: Fields) -> ModelConfig:
    shared = fields.integer("shared_intermediate_size", 1024, minimum=0)
    return _granite_experts(fields, "granitemoeshared", shared)


def _granite_experts(fields: Fields, family: str, shared_size: int) -> ModelConfig:
    config = scaled_from_hf(fields, family)
    count = fields.integer("num_local_experts", 8)
    experts = ExpertsConfig(count, _chosen(fields, count, 2), config.mlp_size, shared_size=shared_size, normalised=True)
    return with_experts(config, experts)


def _hunyuan_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(
        fields,
        "hunyuan_v1_moe",
        tied=False,
        rope=hunyuan_rope(fields),
        default_eps=1e-5,
        qk_norm=HeadNorms(rotated=True),
        qkv_bias=bias,
        output_bias=bias,
    )
    count, used = _same(fields, "num_experts", 1), _same(fields, "moe_topk", 1)
    experts = ExpertsConfig(count, used, config.mlp_size, shared_size=config.mlp_size, normalised=True)
    return with_experts(config, experts)


def _same(fields: Fields, key: str, default: int) -> int:
    """A number that may be given layer by layer."""
    value = fields.get(key)
    if isinstance(value, list) and value and len({*map(str, value)}) == 1:
        fields = Fields({**fields.entries, key: value[0]}, fields.source, fields.prefix)
    return fields.integer(key, default)


def _ernie_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias", False)
    config = base_from_hf(
        fields,
        "ernie4_5_moe",
        tied=True,
        default_theta=500_000.0,
        default_eps=1e-5,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )
    if bias:
        raise fields.bad("use_bias", True, "false in this family")
    count = count_of(fields, "moe_num_experts", "num_experts", default=64)
    size = fields.integer("moe_intermediate_size", 1536)
    first, every = fields.integer("moe_layer_start_index", 1, minimum=0), fields.integer("moe_layer_interval", 1)
    last = fields.get("moe_layer_end_index")
    last = config.num_layers - 1 if last in (None, -1) else fields.integer("moe_layer_end_index", minimum=0)
    dense = {i for i in range(config.num_layers) if (i + 1) % every or not first <= i <= last}
    experts = ExpertsConfig(
        count,
        fields.integer("moe_k", fields.integer("num_experts_per_tok", 6), maximum=count),
        size,
        shared_size=size * fields.integer("moe_num_shared_experts", 2, minimum=0),
        correction=True,
        normalised=True,
    )
    return with_experts(config, experts, dense)


def sigmoid_experts(fields: Fields, count: int, used: int, shared: str, scale: float = 1.0) -> ExpertsConfig:
    """Chosen as in DeepSeek-V3; ``shared``: what the number of shared experts is called; others are defaults."""
    size = fields.integer("moe_intermediate_size")
    groups = fields.integer("n_group", 1)
    return ExpertsConfig(
        count,
        _chosen(fields, count, used),
        size,
        shared_size=size * fields.integer(shared, 1, minimum=0),
        score="sigmoid",
        correction=True,
        groups=groups,
        groups_used=fields.integer("topk_group", 1, maximum=groups),
        group_score="two_best",
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", scale),
    )


def first_dense(fields: Fields, config: ModelConfig, default: int) -> set[int]:
    """The layers without experts: the first few, or as they are listed."""
    kinds = fields.get("mlp_layer_types")
    if kinds is None:
        return set(range(fields.integer("first_k_dense_replace", default, minimum=0)))
    if not isinstance(kinds, list) or len(kinds) != config.num_layers or {*map(str, kinds)} - {"dense", "sparse"}:
        raise fields.bad("mlp_layer_types", kinds, f"{config.num_layers} entries, each dense or sparse")
    return {index for index, kind in enumerate(kinds) if kind == "dense"}


def _exaone_moe(fields: Fields) -> ModelConfig:
    config = base_from_hf(fields, "exaone_moe", tied=False, default_eps=1e-5, qk_norm=HeadNorms())
    config = replace(config, layers=exaone_layers(fields, config.num_layers))
    count = count_of(fields, "num_experts", "num_local_experts", default=64)
    experts = sigmoid_experts(fields, count, 8, "num_shared_experts", 2.5)
    return with_experts(config, experts, first_dense(fields, config, 1))


def _mellum(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(
        fields,
        "mellum",
        tied=False,
        default_head_dim=128,
        qk_norm=HeadNorms(),
        qkv_bias=bias,
        output_bias=bias,
    )
    full = rope_from_hf(fields, config.head_dim, 500_000.0, "full_attention")
    local = rope_from_hf(fields, config.head_dim, 10_000.0, "sliding_attention")
    no_window = [False] * config.num_layers
    windows = windows_from_hf(fields, config.num_layers, fields.integer("sliding_window", 1024), no_window)
    layers = tuple(LayerConfig(window, 0 if window is None else 1) for window in windows)
    count = count_of(fields, "num_experts", "num_local_experts", default=64)
    experts = ExpertsConfig(
        count,
        _chosen(fields, count, 8),
        fields.integer("moe_intermediate_size", 896),
        normalised=fields.flag("norm_topk_prob", True),
    )
    config = replace(config, layers=layers, ropes=(full, local))
    dense = first_dense(fields, config, 0)
    return with_experts(config, experts, dense)


def _solar_open(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(
        fields,
        "solar_open",
        tied=False,
        default_theta=1e6,
        default_head_dim=128,
        default_eps=1e-5,
        share=1.0,
        qkv_bias=bias,
    )
    return with_experts(config, _glm_experts(fields))


def _glm4_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(
        fields,
        "glm4_moe",
        tied=False,
        default_eps=1e-5,
        share=0.5,
        qk_norm=HeadNorms() if fields.flag("use_qk_norm", False) else None,
        qkv_bias=bias,
    )
    return with_experts(config, _glm_experts(fields), first_dense(fields, config, 1))


def _glm_experts(fields: Fields) -> ExpertsConfig:
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=128)
    return sigmoid_experts(fields, count, 8, "n_shared_experts")


def _dots1(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = base_from_hf(fields, "dots1", tied=False, qk_norm=HeadNorms(), qkv_bias=bias, output_bias=bias)
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    first = fields.integer("max_window_layers", config.num_layers, minimum=0)
    sliding = [window is not None and i >= first for i in range(config.num_layers)]
    windows = windows_from_hf(fields, config.num_layers, window, sliding)
    config = replace(config, layers=tuple(LayerConfig(each) for each in windows))
    count = count_of(fields, "n_routed_experts", "num_local_experts", default=128)
    experts = sigmoid_experts(fields, count, 6, "n_shared_experts")
    return with_experts(config, experts, first_dense(fields, config, 0))


_EXPERTS = {
    "router": "layers.{i}.mlp.gate",
    "expert_gate": "layers.{i}.mlp.experts.{e}.gate_proj",
    "expert_up": "layers.{i}.mlp.experts.{e}.up_proj",
    "expert_down": "layers.{i}.mlp.experts.{e}.down_proj",
}
_BLOCK = {
    "router": "layers.{i}.block_sparse_moe.gate",
    "expert_gate": "layers.{i}.block_sparse_moe.experts.{e}.w1",
    "expert_up": "layers.{i}.block_sparse_moe.experts.{e}.w3",
    "expert_down": "layers.{i}.block_sparse_moe.experts.{e}.w2",
    "router_correction": "layers.{i}.block_sparse_moe.e_score_correction_bias",
}


def shared(name: str) -> dict[str, str]:
    """Names of the expert that all rows go through."""
    return {f"shared_{part}": f"layers.{{i}}.mlp.{name}.{part}_proj" for part in ("gate", "up", "down")}


def _layout(
    more: dict[str, str], base: TensorLayout = HF_LAYOUT, layer: dict[str, str] = HF_LAYER, **changes: Any
) -> TensorLayout:
    whole = frozenset({"router_correction"})
    return replace(base, layer=layer | more, **{"whole": whole, **changes})


EXPERTS_LAYOUT = _layout(
    _EXPERTS | shared("shared_experts") | {"router_correction": "layers.{i}.mlp.gate.e_score_correction_bias"}
)
_HUNYUAN = {
    "q_norm": "layers.{i}.self_attn.query_layernorm",
    "k_norm": "layers.{i}.self_attn.key_layernorm",
    "router": "layers.{i}.mlp.gate.wg",
}
_ONLY_POST = without(HF_LAYER, "attention_norm", "mlp_norm") | POST_NORMS


_Gguf = tuple[str, Callable[[Fields], ModelConfig], TensorLayout]


def _family(
    name: str, read: Callable[[Fields], ModelConfig], layout: TensorLayout, in_gguf: _Gguf | None = None
) -> Family:
    architecture, gguf, gguf_layout = in_gguf or ("", None, None)
    return Family(name, name, architecture, read, gguf, layout, gguf_layout, "experts")


_GRANITE = _layout(GRANITE_EXPERTS, convert={"final_norm": divided})
_GRANITE_GGUF: _Gguf = ("granitemoe", gguf.granitemoe, gguf.GRANITE)

FAMILIES = (
    _family("mixtral", _mixtral, _layout(_BLOCK), ("llama", gguf.mixtral, gguf.INTERLEAVED)),
    _family("minimax_m2", _minimax_m2, _layout(_BLOCK)),
    _family("phimoe", _phimoe, _layout(_BLOCK)),
    _family(
        "qwen2_moe",
        _qwen2_moe,
        _layout(_EXPERTS | shared("shared_expert") | {"shared_scale": "layers.{i}.mlp.shared_expert_gate"}),
        ("qwen2moe", gguf.qwen2_moe, gguf.LAYOUT),
    ),
    _family("qwen3_moe", _qwen3_moe, _layout(_EXPERTS), ("qwen3moe", gguf.qwen3_moe, gguf.LAYOUT)),
    _family("olmoe", _olmoe, _layout(_EXPERTS), ("olmoe", gguf.olmoe, gguf.LAYOUT)),
    _family("flex_olmo", _flex_olmo, _layout(_EXPERTS, layer=_ONLY_POST)),
    _family("granitemoe", _granitemoe, _layout(GRANITE_EXPERTS, convert={"final_norm": divided}), _GRANITE_GGUF),
    _family(
        "granitemoeshared", _granitemoeshared, _layout(GRANITE_EXPERTS, convert={"final_norm": divided}), _GRANITE_GGUF
    ),
    _family("hunyuan_v1_moe", _hunyuan_moe, _layout(_EXPERTS | shared("shared_mlp") | _HUNYUAN)),
    _family(
        "ernie4_5_moe",
        _ernie_moe,
        _layout(
            _EXPERTS
            | shared("shared_experts")
            | {"router_correction": "layers.{i}.mlp.moe_statics.e_score_correction_bias"},
            HF_INTERLEAVED,
            as_rows=frozenset({"router_correction"}),
            ignored=(*HF_LAYOUT.ignored, r"mtp_.*"),
        ),
    ),
    _family(
        "exaone_moe",
        _exaone_moe,
        _layout(
            _EXPERTS | shared("shared_experts") | {"router_correction": "layers.{i}.mlp.e_score_correction_bias"},
            ignored=(*HF_LAYOUT.ignored, r"mtp\..*"),
        ),
    ),
    _family("mellum", _mellum, _layout(_EXPERTS)),
    _family("solar_open", _solar_open, EXPERTS_LAYOUT),
    _family("glm4_moe", _glm4_moe, replace(EXPERTS_LAYOUT, beyond=True)),
    _family("dots1", _dots1, EXPERTS_LAYOUT, ("dots1", gguf.dots1, gguf.LAYOUT)),
)
