"""GPT-2 and GPT-NeoX (Pythia): layer norms, biases, an MLP without gate.

Sources: the configuration and modelling files of transformers (models/gpt2, gpt_neox); for GGUF llama.cpp's
converter, which turns GPT-2's matrices to [out, in] and GPT-NeoX's q, k, v from per head to one after the other.
"""

from __future__ import annotations

from torch import Tensor

from headstart.models.config import AttentionConfig, EmbeddingConfig, ModelConfig, ResidualConfig
from headstart.models.families.base import CACHE_SCALES, ROTARY_BUFFERS, Family, Gguf, TensorLayout
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_JOINT_QKV
from headstart.models.families.llama import LAYER_NORMS, UNGATED_BIASED, UNROTATED, base_of, biased
from headstart.models.families.rope import rope_of, rotated_dim

GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}


def _gpt2(fields: Fields) -> ModelConfig:
    fields.refuse("scale_attn_by_inverse_layer_idx", True, because="a scale for each layer, which is not supported")
    fields.refuse("add_cross_attention", True, because="which no decoder of text alone has")
    sizes = {"vocab_size": 50257, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
    return gpt(fields.called(GPT2_NAMES, sizes), default_positions=1024)


def gpt(fields: Fields, default_positions: int = 2048, default_activation: str = "gelu_new") -> ModelConfig:
    """Layers with norms and biases, and learnt positions."""
    return base_of(
        fields.with_defaults(
            {"intermediate_size": 4 * fields.integer("hidden_size"), "max_position_embeddings": default_positions}
        ),
        tied=True,
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        activation_key="activation_function",
        default_activation=default_activation,
        layer=UNROTATED,
        ropes=(),
        norms=LAYER_NORMS,
        mlp=UNGATED_BIASED,
        attention=AttentionConfig(
            scale=None if fields.flag("scale_attn_weights", True) else 1.0, qkv_bias=True, output_bias=True
        ),
        embedding=EmbeddingConfig(positions="learned"),
    )


def _gpt_neox(fields: Fields) -> ModelConfig:
    head_dim = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    dim = rotated_dim(fields, head_dim, 0.25, "rotary_pct")
    return base_of(
        fields,
        rope=rope_of(fields, dim, fields.number("rotary_emb_base", 10_000.0), whole_heads=False),
        eps="layer_norm_eps",
        default_eps=1e-5,
        default_activation="gelu",
        norms=LAYER_NORMS,
        mlp=UNGATED_BIASED,
        attention=biased(fields, True),
        residual=ResidualConfig(parallel=fields.flag("use_parallel_residual", True)),
    )


def _heads_together(tensor: Tensor, config: ModelConfig) -> Tensor:
    """[head, (q, k, v), head_dim] along the first axis -> [(q, k, v), head, head_dim]."""
    by_head = tensor.reshape(config.num_heads, 3, config.head_dim, *tensor.shape[1:])
    return by_head.transpose(0, 1).reshape(tensor.shape)


_BUFFERS = r"(bias|masked_bias)"
GPT2_LAYER = {
    "attention_norm": "h.{i}.ln_1",
    "qkv": "h.{i}.attn.c_attn",
    "output": "h.{i}.attn.c_proj",
    "mlp_norm": "h.{i}.ln_2",
    "up": "h.{i}.mlp.c_fc",
    "down": "h.{i}.mlp.c_proj",
}
_GPT2_LAYOUT = TensorLayout(
    prefix="transformer.",
    embedding="wte",
    positions="wpe",
    final_norm="ln_f",
    head="lm_head",
    layer=GPT2_LAYER,
    transposed=True,
    ignored=(rf"h\.\d+\.attn\.{_BUFFERS}",),
)
_GPT_NEOX_LAYOUT = TensorLayout(
    prefix="gpt_neox.",
    embedding="embed_in",
    final_norm="final_layer_norm",
    head="embed_out",
    layer={
        "attention_norm": "layers.{i}.input_layernorm",
        "qkv": "layers.{i}.attention.query_key_value",
        "output": "layers.{i}.attention.dense",
        "mlp_norm": "layers.{i}.post_attention_layernorm",
        "up": "layers.{i}.mlp.dense_h_to_4h",
        "down": "layers.{i}.mlp.dense_4h_to_h",
    },
    convert={"qkv": _heads_together},
    ignored=(rf"layers\.\d+\.attention\.{_BUFFERS}", ROTARY_BUFFERS, *CACHE_SCALES),
)
FAMILIES = (
    Family("gpt2", _gpt2, _GPT2_LAYOUT, Gguf("gpt2", GGUF_JOINT_QKV)),
    Family("gpt_neox", _gpt_neox, _GPT_NEOX_LAYOUT, Gguf("gptneox", GGUF_JOINT_QKV, defaults={"attention_bias": True})),
)
