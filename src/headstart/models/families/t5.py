"""T5 and its kin: T5, T5 v1.1, FLAN-T5, UL2, mT5, UMT5.

Sources: the configuration and modelling files of transformers (models/t5, mt5, umt5); for GGUF llama.cpp's converter
(conversion/t5.py) and model (src/models/t5.cpp). Norms are RMS, there are no biases, scores are not scaled, and places
are told by a bias for each bucket of distances.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import partial

from headstart.models.config import AttentionConfig, FoldedConfig, MlpConfig, ModelConfig, OutputHeadConfig
from headstart.models.encoder_decoder import EncoderConfig, RelativeBias
from headstart.models.families.encoder_decoder import (
    EncoderDecoderFamily,
    EncoderDecoderLayout,
    StackLayout,
    generation_entries,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import as_config_json
from headstart.models.families.llama import ACTIVATIONS, UNROTATED, base_of

_PADDING = 0
"""The padding token where files do not name it; outputs begin with it where they name nothing else."""


_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "head_dim": "d_kv",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
}
_SIZES = {"hidden_size": 512, "num_attention_heads": 8, "head_dim": 64, "intermediate_size": 2048}


def _t5(fields: Fields, family: str) -> ModelConfig:
    gated, _, kind = fields.text("feed_forward_proj", "relu").rpartition("-")
    if gated not in ("", "gated") or kind not in ACTIVATIONS:
        raise fields.bad("feed_forward_proj", fields.get("feed_forward_proj"), "relu, gated-gelu or gated-silu")
    relative = RelativeBias(
        fields.integer("relative_attention_num_buckets", 32, minimum=4, maximum=1 << 16),
        fields.integer("relative_attention_max_distance", 128, minimum=2),
        in_every_layer=family == "umt5",
    )
    if relative.max_distance <= relative.buckets // 2:
        raise fields.bad("relative_attention_max_distance", relative.max_distance, "more than half of the buckets")
    outputs = generation_entries(fields)
    if outputs["start_token_id"] is None:
        outputs["start_token_id"] = fields.integer("pad_token_id", _PADDING, minimum=0)
    fields = fields.called(_NAMES, _SIZES)
    encoder = EncoderConfig(
        num_layers=fields.integer("num_hidden_layers", 6, maximum=4096),
        num_heads=fields.integer("num_attention_heads"),
        head_dim=fields.integer("head_dim"),
        mlp_size=fields.integer("intermediate_size"),
        max_positions=MAX_POSITIONS,
        positions="relative",
        relative=relative,
        **outputs,
    )
    decoder = {
        "num_hidden_layers": fields.integer("num_decoder_layers", encoder.num_layers, maximum=4096),
        "num_key_value_heads": encoder.num_heads,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": None,
    }
    divisor = fields.integer("hidden_size") ** 0.5 if _divides_logits(fields, family) else 1.0
    config = base_of(
        fields.with_entries(**decoder),
        family,
        tied=True,
        eps="layer_norm_epsilon",
        default_activation=None,
        layer=UNROTATED,
        ropes=(),
        # A gated T5's "gelu" is the approximation by tanh.
        mlp=MlpConfig("gelu_tanh" if gated and kind == "gelu" else ACTIVATIONS[kind], gated=bool(gated)),
        attention=AttentionConfig(scale=1.0),
        folded=FoldedConfig(divisor),
    )
    return replace(config, encoder=encoder)


_GGUF_KEYS = {
    "num_decoder_layers": "decoder_block_count",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "relative_attention_num_buckets": "attention.relative_buckets_count",
}


def _from_gguf(fields: Fields, tensors: Container[str]) -> ModelConfig:
    """What the metadata leave open, the tensors say: gates, a table of biases in every layer (UMT5), a head of its own.

    A file without a head has T5's first kind, whose last states are scaled; transformers says so of it alone. The
    largest distance is no entry; llama.cpp has transformers' default as a constant.
    """
    own_head = f"{_GGUF_NAMES.head}.weight" in tensors
    gated = f"{_GGUF_NAMES.decoder.layer['gate'].format(i=0)}.weight" in tensors
    in_every_layer = f"{_GGUF_NAMES.decoder.relative.format(i=1)}.weight" in tensors
    padding = Fields(fields.entries, fields.source, "tokenizer.ggml.").integer("padding_token_id", _PADDING, minimum=0)
    fields = as_config_json(fields, _GGUF_KEYS)
    known = {
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "scale_decoder_outputs": not own_head,
        "decoder_start_token_id": fields.integer("decoder_start_token_id", padding, minimum=0),
    }
    config = _t5(fields.with_entries(**known), "umt5" if in_every_layer else "t5")
    return replace(config, head=OutputHeadConfig(tied=not own_head))


def _divides_logits(fields: Fields, family: str) -> bool:
    """Where a model was trained with a tied head, its last states are scaled by 1 / sqrt(hidden size).

    ``tie_word_embeddings`` says so; transformers 5 ties every T5 that has no head of its own, and keeps what the
    entry said in ``scale_decoder_outputs``. mT5 never scales there.
    """
    tied = fields.flag("tie_word_embeddings", True)
    return family != "mt5" and fields.flag("scale_decoder_outputs", tied)


_LAYER = {
    "attention_norm": "block.{i}.layer.0.layer_norm",
    "q": "block.{i}.layer.0.SelfAttention.q",
    "k": "block.{i}.layer.0.SelfAttention.k",
    "v": "block.{i}.layer.0.SelfAttention.v",
    "output": "block.{i}.layer.0.SelfAttention.o",
}


def _channel(place: int, gated: bool) -> dict[str, str]:
    names = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    parts = {role: f"block.{{i}}.layer.{place}.DenseReluDense.{name}" for role, name in names.items()}
    return {"mlp_norm": f"block.{{i}}.layer.{place}.layer_norm", **parts}


def _stack(stack: str, layer: dict[str, str]) -> StackLayout:
    return StackLayout(
        layer={role: f"{stack}.{name}" for role, name in layer.items()},
        final_norm=f"{stack}.final_layer_norm",
        relative=f"{stack}.block.{{i}}.layer.0.SelfAttention.relative_attention_bias",
    )


_CROSS = {
    "cross_norm": "block.{i}.layer.1.layer_norm",
    "cross_q": "block.{i}.layer.1.EncDecAttention.q",
    "cross_k": "block.{i}.layer.1.EncDecAttention.k",
    "cross_v": "block.{i}.layer.1.EncDecAttention.v",
    "cross_output": "block.{i}.layer.1.EncDecAttention.o",
}


def _layout(config: ModelConfig) -> EncoderDecoderLayout:
    """A gated MLP's matrices have other names."""
    gated = config.mlp.gated
    return EncoderDecoderLayout(
        embeddings=("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        encoder=_stack("encoder", _LAYER | _channel(1, gated)),
        decoder=_stack("decoder", _LAYER | _CROSS | _channel(2, gated)),
        # T5's first checkpoints hold a table that no layer reads.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


def _gguf_stack(stack: str, layer: dict[str, str]) -> StackLayout:
    return StackLayout(
        layer={role: f"{stack}.blk.{{i}}.{name}" for role, name in layer.items()},
        final_norm=f"{stack}.output_norm",
        relative=f"{stack}.blk.{{i}}.attn_rel_b",
    )


_GGUF_LAYER = {
    "attention_norm": "attn_norm",
    **{role: f"attn_{role}" for role in "qkv"},
    "output": "attn_o",
    "mlp_norm": "ffn_norm",
    **{role: f"ffn_{role}" for role in ("gate", "up", "down")},
}
_GGUF_CROSS = {
    "cross_norm": "cross_attn_norm",
    **{f"cross_{role}": f"cross_attn_{role}" for role in "qkv"},
    "cross_output": "cross_attn_o",
}
_GGUF_NAMES = EncoderDecoderLayout(
    embeddings=("token_embd",),
    encoder=_gguf_stack("enc", _GGUF_LAYER),
    decoder=_gguf_stack("dec", _GGUF_LAYER | _GGUF_CROSS),
    head="output",
    # Of T5's first checkpoints, and read by no layer.
    ignored=(r"dec\.blk\.0\.cross_attn_rel_b\.weight",),
)

FAMILIES = tuple(
    EncoderDecoderFamily(
        name,
        partial(_t5, family=name),
        _layout,
        architecture="t5",
        gguf=_from_gguf,
        gguf_layout=lambda config: _GGUF_NAMES,
    )
    for name in ("t5", "mt5", "umt5")
)
