"""Llama with one or two switches: Arcee, Helium, Seed-OSS, ERNIE 4.5, Hunyuan, EXAONE 4, CWM, Ministral, Apertus,
nanochat, HyperCLOVA X.

Sources: the configuration and modelling files of transformers (models of these names); for GGUF llama.cpp's converter,
which interleaves the rotary halves of Arcee's q and k as it does Llama's, and leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FoldedConfig,
    HeadNorms,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    QueryGrowth,
    RopeConfig,
)
from headstart.models.families import gguf_kin
from headstart.models.families.base import Family, Parts
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf_layers import (
    rotated_in_windows,
    slides_from_gguf,
    window_from_gguf,
    without_guessing_layers,
)
from headstart.models.families.granite import with_factor_of_layers
from headstart.models.families.llama import (
    GGUF_INTERLEAVED,
    GGUF_LAYER,
    GGUF_LAYOUT,
    HF_LAYER,
    HF_LAYOUT,
    base_from_gguf,
    base_from_hf,
    biased,
    halves,
    mlp_of,
    windows_from_hf,
)
from headstart.models.families.rope import rope_from_hf

_LLAMA3: dict[str, object] = {
    "rope_type": "llama3",
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
} | {"high_freq_factor": 4.0}
POST_NORMS = {
    "attention_post_norm": "layers.{i}.post_attention_layernorm",
    "mlp_post_norm": "layers.{i}.post_feedforward_layernorm",
}
"""Where a layer's only norms are those of its outputs."""
GGUF_POST_NORMS = {"attention_post_norm": "blk.{i}.post_attention_norm", "mlp_post_norm": "blk.{i}.post_ffw_norm"}
HF_INTERLEAVED = replace(HF_LAYOUT, convert={"q": halves, "k": halves})


def _arcee(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "arcee",
        tied=False,
        default_eps=1e-5,
        default_activation="relu2",
        attention=biased(fields),
        mlp=mlp_of(fields, gated=False),
    )


def _helium(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "helium",
        tied=False,
        default_theta=100_000.0,
        default_head_dim=128,
        default_eps=1e-8,
        attention=AttentionConfig(qkv_bias=fields.flag("attention_bias", False)),
        mlp=mlp_of(fields),
    )


def _seed_oss(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "seed_oss",
        tied=False,
        default_head_dim=128,
        attention=AttentionConfig(
            qkv_bias=fields.flag("attention_bias", True), output_bias=fields.flag("attention_out_bias", False)
        ),
        mlp=mlp_of(fields),
    )


def _ernie(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "ernie4_5",
        tied=True,
        default_theta=500_000.0,
        default_head_dim=128,
        default_eps=1e-5,
        attention=biased(fields, key="use_bias"),
        mlp=MlpConfig(bias=fields.flag("use_bias", False)),
    )


def hunyuan_rope(fields: Fields) -> RopeConfig:
    """Called "dynamic" where ``alpha`` stretches its base, once and for all."""
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    rope = rope_from_hf(fields, head_dim)
    scaling = fields.within("rope_scaling") or fields.within("rope_parameters")
    alpha = None if scaling is None else scaling.optional_number("alpha")
    if alpha is None or scaling is None or scaling.text("rope_type", scaling.text("type", "default")) != "dynamic":
        return rope
    return replace(rope, theta=rope.theta * alpha ** (head_dim / (head_dim - 2)))


def _hunyuan(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "hunyuan_v1_dense",
        tied=False,
        rope=hunyuan_rope(fields),
        default_eps=1e-5,
        attention=replace(biased(fields), qk_norm=HeadNorms(rotated=True)),
    )


def exaone_layers(fields: Fields, num_layers: int) -> tuple[LayerConfig, ...]:
    """Windows by a pattern, a number or one letter a layer; beside them, layers that see all have no positions."""
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS) if fields.has("sliding_window") else 4096
    pattern = fields.get("sliding_window_pattern")
    pattern = 4 if pattern is None else pattern
    if isinstance(pattern, str) and pattern:
        sliding = [pattern[i % len(pattern)] == "L" and i != num_layers - 1 for i in range(num_layers)]
    else:
        every = fields.integer("sliding_window_pattern", 4, minimum=0)
        sliding = [every > 0 and (i + 1) % every != 0 and i != num_layers - 1 for i in range(num_layers)]
    windows = windows_from_hf(fields, num_layers, window, [window is not None and each for each in sliding])
    return tuple(LayerConfig(each, 0 if window is None or each is not None else None) for each in windows)


def _exaone4(fields: Fields) -> ModelConfig:
    config = base_from_hf(fields, "exaone4", tied=False, default_eps=1e-5, **_EXAONE)
    return replace(config, layers=exaone_layers(fields, config.num_layers))


_EXAONE: Parts = {"norms": NormsConfig(pre=False, post=True), "attention": AttentionConfig(qk_norm=HeadNorms())}


def _cwm(fields: Fields) -> ModelConfig:
    scaled = {"rope_parameters": _LLAMA3 | {"rope_theta": 1_000_000.0, "factor": 16.0}}
    fields = with_defaults(fields, {"rms_norm_eps": 1e-5, "sliding_window": 8192})
    fields = fields if _says_rope(fields) else with_defaults(fields, scaled)
    config = base_from_hf(fields, "cwm", tied=False, default_head_dim=128)
    sliding = [i % 4 != 0 for i in range(config.num_layers)]
    windows = windows_from_hf(fields, config.num_layers, fields.integer("sliding_window"), sliding)
    return replace(config, layers=tuple(LayerConfig(window) for window in windows))


def _says_rope(fields: Fields) -> bool:
    return any(fields.get(key) is not None for key in ("rope_parameters", "rope_scaling", "rope_theta"))


def with_defaults(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """The same with entries that it leaves out."""
    given = {key: value for key, value in fields.entries.items() if value is not None}
    return Fields({**fields.entries, **defaults, **given}, fields.source, fields.prefix)


def _ministral(fields: Fields) -> ModelConfig:
    config = base_from_hf(fields, "ministral", tied=False)
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    windows = windows_from_hf(fields, config.num_layers, window, [window is not None] * config.num_layers)
    return replace(config, layers=tuple(LayerConfig(each) for each in windows))


def _ministral3(fields: Fields) -> ModelConfig:
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    rope = fields.within("rope_parameters") or fields.within("rope_scaling")
    growth = None
    if rope is not None and rope.optional_number("llama_4_scaling_beta") is not None:
        trained = rope.integer("original_max_position_embeddings", maximum=MAX_POSITIONS)
        growth = QueryGrowth(rope.number("llama_4_scaling_beta"), trained)
    return base_from_hf(
        fields,
        "ministral3",
        tied=False,
        default_head_dim=128,
        default_eps=1e-5,
        layer=LayerConfig(window),
        attention=AttentionConfig(query_growth=growth),
    )


def _apertus(fields: Fields) -> ModelConfig:
    scaled = {"rope_parameters": _LLAMA3 | {"rope_theta": 12_000_000.0, "factor": 8.0}}
    fields.require("hidden_act", "xielu", default="xielu")
    return base_from_hf(
        fields if _says_rope(fields) else with_defaults(fields, scaled),
        "apertus",
        tied=False,
        default_eps=1e-5,
        default_activation=None,
        mlp=MlpConfig("xielu", gated=False),
        attention=replace(biased(fields), qk_norm=HeadNorms()),
    )


def _nanochat(fields: Fields) -> ModelConfig:
    return base_from_hf(
        fields,
        "nanochat",
        tied=False,
        default_activation="relu2",
        mlp=MlpConfig(gated=False),
        norms=NormsConfig(learnt=False),
        embedding=EmbeddingConfig(norm=True),
        attention=AttentionConfig(
            qk_norm=HeadNorms(learnt=False, rotated=True), qkv_bias=fields.flag("attention_bias", False)
        ),
        head=OutputHeadConfig(softcap=fields.number("final_logit_softcapping", 15.0)),
    )


def _turned_backwards(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Heads whose halves turn the other way round -> the halves swapped, which then turn as everybody's do."""
    heads = tensor.reshape(-1, 2, config.head_dim // 2, *tensor.shape[1:])
    return heads.flip(1).reshape(tensor.shape)


def _hyperclovax(fields: Fields) -> ModelConfig:
    scale, residual = fields.optional_number("attention_multiplier"), fields.number("residual_multiplier", 1.0)
    embedding, divisor = fields.number("embedding_multiplier", 1.0), 1 / fields.number("logits_scaling", 1.0)
    post_norms = fields.flag("use_post_norm", True)
    config = base_from_hf(
        fields,
        "hyperclovax",
        tied=False,
        norms=NormsConfig(post=post_norms),
        attention=replace(biased(fields), scale=scale),
        mlp=mlp_of(fields),
        embedding=EmbeddingConfig(embedding),
        folded=FoldedConfig(divisor, post_norms=residual if post_norms else 1.0),
    )
    return config if post_norms else with_factor_of_layers(config, residual)


def _scaled(weight: Tensor, config: ModelConfig) -> Tensor:
    return weight * config.folded.post_norms


def _divided(weight: Tensor, config: ModelConfig) -> Tensor:
    return weight / config.folded.logit_divisor


def _seed_oss_gguf(fields: Fields) -> ModelConfig:
    return base_from_gguf(fields, "seed_oss")


def _arcee_gguf(fields: Fields) -> ModelConfig:
    return base_from_gguf(fields, "arcee", mlp=MlpConfig("relu2", gated=False))


def _ernie_gguf(fields: Fields) -> ModelConfig:
    return base_from_gguf(fields, "ernie4_5", default_theta=500_000.0)


def _hunyuan_gguf(fields: Fields) -> ModelConfig:
    return base_from_gguf(fields, "hunyuan_v1_dense", attention=AttentionConfig(qk_norm=HeadNorms(rotated=True)))


def _exaone4_gguf(fields: Fields) -> ModelConfig:
    fields = without_guessing_layers(fields)
    config = base_from_gguf(
        fields, "exaone4", norms=NormsConfig(pre=False, post=True), attention=AttentionConfig(qk_norm=HeadNorms())
    )
    slides = slides_from_gguf(fields, config.num_layers, 4)
    return replace(config, layers=rotated_in_windows(window_from_gguf(fields), slides))


_UNGATED = {role: name for role, name in HF_LAYER.items() if role != "gate"}
_GGUF_UNGATED = {role: name for role, name in GGUF_LAYER.items() if role != "gate"}
_HUNYUAN = {"q_norm": "layers.{i}.self_attn.query_layernorm", "k_norm": "layers.{i}.self_attn.key_layernorm"}
_ONLY_POST = {role: name for role, name in HF_LAYER.items() if role not in ("attention_norm", "mlp_norm")} | POST_NORMS
_GGUF_ONLY_POST = {
    role: name for role, name in GGUF_LAYER.items() if role not in ("attention_norm", "mlp_norm")
} | GGUF_POST_NORMS
ONLY_POST_NORMED = replace(HF_LAYOUT, layer=_ONLY_POST)
GGUF_ONLY_POST_NORMED = replace(GGUF_LAYOUT, layer=_GGUF_ONLY_POST)
_SEED_OSS = replace(GGUF_LAYOUT, layer=GGUF_LAYER | {"mlp_norm": "blk.{i}.post_attention_norm"})
_APERTUS = replace(
    HF_LAYOUT,
    layer={
        **_UNGATED,
        "attention_norm": "layers.{i}.attention_layernorm",
        "mlp_norm": "layers.{i}.feedforward_layernorm",
        "curve_above": "layers.{i}.mlp.act_fn.alpha_p",
        "curve_below": "layers.{i}.mlp.act_fn.alpha_n",
        "curve_slope": "layers.{i}.mlp.act_fn.beta",
        "curve_least": "layers.{i}.mlp.act_fn.eps",
    },
    whole=frozenset({"curve_above", "curve_below", "curve_slope", "curve_least"}),
    scalars=frozenset({"curve_slope", "curve_least"}),
)
_NANOCHAT = replace(
    HF_LAYOUT,
    layer={**_UNGATED, "up": "layers.{i}.mlp.fc1", "down": "layers.{i}.mlp.fc2"},
    convert={"q": _turned_backwards, "k": _turned_backwards},
)
_HYPERCLOVAX = replace(
    HF_LAYOUT,
    layer={
        **HF_LAYER,
        "attention_post_norm": "layers.{i}.post_norm1",
        "mlp_post_norm": "layers.{i}.post_norm2",
    },
    convert={"attention_post_norm": _scaled, "mlp_post_norm": _scaled, "final_norm": _divided},
)

FAMILIES = (
    Family(
        "arcee",
        "arcee",
        "arcee",
        _arcee,
        _arcee_gguf,
        replace(HF_LAYOUT, layer=_UNGATED),
        replace(GGUF_INTERLEAVED, layer=_GGUF_UNGATED),
    ),
    Family("helium", "helium", "", _helium, None, HF_INTERLEAVED, None),
    Family("seed_oss", "seed_oss", "seed_oss", _seed_oss, _seed_oss_gguf, HF_LAYOUT, _SEED_OSS),
    Family("ernie4_5", "ernie4_5", "ernie4_5", _ernie, _ernie_gguf, HF_INTERLEAVED, GGUF_INTERLEAVED),
    Family(
        "hunyuan_v1_dense",
        "hunyuan_v1_dense",
        "hunyuan-dense",
        _hunyuan,
        _hunyuan_gguf,
        replace(HF_LAYOUT, layer=HF_LAYER | _HUNYUAN),
        GGUF_LAYOUT,
    ),
    Family("exaone4", "exaone4", "exaone4", _exaone4, _exaone4_gguf, ONLY_POST_NORMED, GGUF_ONLY_POST_NORMED),
    Family("cwm", "cwm", "", _cwm, None, HF_LAYOUT, None),
    Family("ministral", "ministral", "", _ministral, None, HF_LAYOUT, None),
    Family("ministral3", "ministral3", "mistral3", _ministral3, gguf_kin.mistral3, HF_LAYOUT, gguf_kin.MISTRAL3),
    Family("apertus", "apertus", "apertus", _apertus, gguf_kin.apertus, _APERTUS, gguf_kin.APERTUS),
    Family("nanochat", "nanochat", "", _nanochat, None, _NANOCHAT, None),
    Family("hyperclovax", "hyperclovax", "", _hyperclovax, None, _HYPERCLOVAX, None),
)
