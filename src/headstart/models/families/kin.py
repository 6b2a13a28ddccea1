"""Llama with one or two switches: Arcee, Helium, Seed-OSS, ERNIE 4.5, Hunyuan, EXAONE 4, CWM, Ministral, Apertus,
nanochat, HyperCLOVA X.

Sources: the configuration and modelling files of transformers (models of these names); for GGUF llama.cpp's converter,
which interleaves the rotary halves of Arcee's q and k as it does Llama's, and leaves the others as they are.
"""

from __future__ import annotations

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
from headstart.models.families.base import CURVE, Family, Gguf, Parts
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYER, GGUF_LAYOUT
from headstart.models.families.granite import divided, with_factor_of_layers
from headstart.models.families.llama import (
    GGUF_INTERLEAVED,
    HF_LAYER,
    HF_LAYOUT,
    base_of,
    biased,
    halves,
    mlp_of,
    windowed,
    windows_of,
)
from headstart.models.families.rope import rope_of

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
HF_INTERLEAVED = replace(HF_LAYOUT, convert={"q": halves, "k": halves})


def _arcee(fields: Fields) -> ModelConfig:
    return base_of(
        fields, default_eps=1e-5, default_activation="relu2", attention=biased(fields), mlp=mlp_of(fields, gated=False)
    )


def _helium(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        default_theta=100_000.0,
        default_head_dim=128,
        default_eps=1e-8,
        attention=AttentionConfig(qkv_bias=fields.flag("attention_bias", False)),
        mlp=mlp_of(fields),
    )


def _seed_oss(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
        default_head_dim=128,
        attention=AttentionConfig(
            qkv_bias=fields.flag("attention_bias", True), output_bias=fields.flag("attention_out_bias", False)
        ),
        mlp=mlp_of(fields),
    )


def _ernie(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
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
    rope = rope_of(fields, head_dim)
    scaling = fields.within("rope_scaling") or fields.within("rope_parameters")
    alpha = None if scaling is None else scaling.optional_number("alpha")
    if alpha is None or scaling is None or scaling.text("rope_type", scaling.text("type", "default")) != "dynamic":
        return rope
    return replace(rope, theta=rope.theta * alpha ** (head_dim / (head_dim - 2)))


def _hunyuan(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
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
    windows = windows_of(fields, num_layers, window, [window is not None and each for each in sliding])
    return tuple(LayerConfig(each, 0 if window is None or each is not None else None) for each in windows)


def _exaone4(fields: Fields) -> ModelConfig:
    config = base_of(fields, default_eps=1e-5, **_EXAONE)
    return replace(config, layers=exaone_layers(fields, config.num_layers))


_EXAONE: Parts = {"norms": NormsConfig(pre=False, post=True), "attention": AttentionConfig(qk_norm=HeadNorms())}


def _cwm(fields: Fields) -> ModelConfig:
    scaled = {"rope_parameters": _LLAMA3 | {"rope_theta": 1_000_000.0, "factor": 16.0}}
    fields = fields.with_defaults({"rms_norm_eps": 1e-5, "sliding_window": 8192})
    fields = fields if _says_rope(fields) else fields.with_defaults(scaled)
    config = base_of(fields, default_head_dim=128)
    return windowed(fields, config, fields.integer("sliding_window"), lambda index: index % 4 != 0)


def _says_rope(fields: Fields) -> bool:
    return any(fields.get(key) is not None for key in ("rope_parameters", "rope_scaling", "rope_theta"))


def _ministral(fields: Fields) -> ModelConfig:
    config = base_of(fields)
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    return windowed(fields, config, window, lambda _: True)


def _ministral3(fields: Fields) -> ModelConfig:
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    return base_of(
        fields,
        default_head_dim=128,
        default_eps=1e-5,
        layer=LayerConfig(window),
        attention=AttentionConfig(query_growth=query_growth(fields)),
    )


def query_growth(fields: Fields) -> QueryGrowth | None:
    """What queries of Mistral's later models grow by, which stands beside their rotation."""
    if fields.of_gguf:
        weight = fields.number("attention.temperature_scale", 0.0)
        length = "attention.temperature_length"
        length = length if fields.integer(length, 0, minimum=0) else "rope.scaling.original_context_length"
        return QueryGrowth(weight, fields.integer(length, maximum=MAX_POSITIONS)) if weight else None
    rope = fields.within("rope_parameters") or fields.within("rope_scaling")
    if rope is None or rope.optional_number("llama_4_scaling_beta") is None:
        return None
    trained = rope.integer("original_max_position_embeddings", maximum=MAX_POSITIONS)
    return QueryGrowth(rope.number("llama_4_scaling_beta"), trained)


def _apertus(fields: Fields) -> ModelConfig:
    scaled = {"rope_parameters": _LLAMA3 | {"rope_theta": 12_000_000.0, "factor": 8.0}}
    fields.require("hidden_act", "xielu", default="xielu")
    return base_of(
        fields if _says_rope(fields) else fields.with_defaults(scaled),
        default_eps=1e-5,
        default_activation=None,
        mlp=MlpConfig("xielu", gated=False),
        attention=replace(biased(fields), qk_norm=HeadNorms()),
    )


def _nanochat(fields: Fields) -> ModelConfig:
    return base_of(
        fields,
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
    config = base_of(
        fields,
        norms=NormsConfig(post=post_norms),
        attention=replace(biased(fields), scale=scale),
        mlp=mlp_of(fields),
        embedding=EmbeddingConfig(embedding),
        folded=FoldedConfig(divisor, post_norms=residual if post_norms else 1.0),
    )
    return config if post_norms else with_factor_of_layers(config, residual)


def _scaled(weight: Tensor, config: ModelConfig) -> Tensor:
    return weight * config.folded.post_norms


_HUNYUAN = {"q_norm": "layers.{i}.self_attn.query_layernorm", "k_norm": "layers.{i}.self_attn.key_layernorm"}
ONLY_POST_NORMED = replace(HF_LAYOUT, layer=HF_LAYER | POST_NORMS)
_SEED_OSS = replace(GGUF_LAYOUT, layer=GGUF_LAYER | {"mlp_norm": "blk.{i}.post_attention_norm"})
_APERTUS = replace(
    HF_LAYOUT,
    layer={
        **HF_LAYER,
        "attention_norm": "layers.{i}.attention_layernorm",
        "mlp_norm": "layers.{i}.feedforward_layernorm",
        **{f"curve_{role}": f"layers.{{i}}.mlp.act_fn.{name}" for role, name in CURVE.items()},
    },
    scalars=frozenset({"curve_slope", "curve_least"}),
)
_NANOCHAT = replace(
    HF_LAYOUT,
    layer={**HF_LAYER, "up": "layers.{i}.mlp.fc1", "down": "layers.{i}.mlp.fc2"},
    convert={"q": _turned_backwards, "k": _turned_backwards},
)
_HYPERCLOVAX = replace(
    HF_LAYOUT,
    layer={**HF_LAYER, "attention_post_norm": "layers.{i}.post_norm1", "mlp_post_norm": "layers.{i}.post_norm2"},
    convert={"attention_post_norm": _scaled, "mlp_post_norm": _scaled, "final_norm": divided},
)

FAMILIES = (
    Family("arcee", _arcee, HF_LAYOUT, Gguf("arcee", GGUF_INTERLEAVED)),
    Family("helium", _helium, HF_INTERLEAVED),
    Family("seed_oss", _seed_oss, HF_LAYOUT, Gguf("seed_oss", _SEED_OSS)),
    Family("ernie4_5", _ernie, HF_INTERLEAVED, Gguf("ernie4_5", GGUF_INTERLEAVED)),
    Family(
        "hunyuan_v1_dense", _hunyuan, replace(HF_LAYOUT, layer=HF_LAYER | _HUNYUAN), Gguf("hunyuan-dense", GGUF_LAYOUT)
    ),
    Family("exaone4", _exaone4, ONLY_POST_NORMED, Gguf("exaone4", GGUF_LAYOUT, defaults={"sliding_window_pattern": 4})),
    Family("cwm", _cwm, HF_LAYOUT),
    Family("ministral", _ministral, HF_LAYOUT),
    Family(
        "ministral3",
        _ministral3,
        HF_LAYOUT,
        Gguf(
            "mistral3", GGUF_INTERLEAVED, {"growth_elsewhere": "rope.scaling.yarn_log_multiplier"}, {"rope_theta": 1e6}
        ),
    ),
    Family("apertus", _apertus, _APERTUS, Gguf("apertus", GGUF_LAYOUT)),
    Family("nanochat", _nanochat, _NANOCHAT),
    Family("hyperclovax", _hyperclovax, _HYPERCLOVAX),
)
