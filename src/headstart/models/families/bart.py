"""BART and its kin: BART, mBART, Pegasus, Marian, M2M100 (NLLB).

Sources: the configuration and modelling files of transformers (models/bart, mbart, pegasus, marian, m2m_100). Norms
have biases, as all projections do; they stand after the sums in BART and Marian, before attention and channel part in
the others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from headstart.models.config import EmbeddingConfig, ModelConfig
from headstart.models.encoder_decoder import EncoderConfig, Positions
from headstart.models.families.encoder_decoder import (
    EncoderDecoderFamily,
    EncoderDecoderLayout,
    StackLayout,
    generation_entries,
)
from headstart.models.families.fields import Fields
from headstart.models.families.llama import BIASED, LAYER_NORMS, UNGATED_BIASED, UNROTATED, base_of

_LEARNED_OFFSET = 2
"""BART's table of positions has two rows before the first position's."""


def decoder_of(fields: Fields, encoder: EncoderConfig, max_positions: int) -> ModelConfig:
    """The decoder of a model of this kind."""
    named = fields.called(
        {
            "hidden_size": "d_model",
            "num_attention_heads": "decoder_attention_heads",
            "num_hidden_layers": "decoder_layers",
            "intermediate_size": "decoder_ffn_dim",
        }
    )
    config = base_of(
        # Tensors tell whether the head is tied.
        named.with_entries(max_position_embeddings=max_positions, tie_word_embeddings=None),
        tied=True,
        eps="layer_norm_eps",
        default_eps=1e-5,
        activation_key="activation_function",
        default_activation="gelu",
        layer=UNROTATED,
        ropes=(),
        norms=LAYER_NORMS,
        mlp=UNGATED_BIASED,
        attention=BIASED,
        embedding=EmbeddingConfig(
            scale=fields.integer("d_model") ** 0.5 if fields.flag("scale_embedding", False) else 1.0,
            positions="learned" if encoder.positions == "learned" else None,
        ),
    )
    return replace(config, encoder=encoder)


def encoder_sizes(fields: Fields) -> dict[str, Any]:
    """Fields of ``EncoderConfig``."""
    hidden, heads = fields.integer("d_model"), fields.integer("encoder_attention_heads")
    if hidden % heads:
        raise fields.bad("encoder_attention_heads", heads, f"a divisor of d_model, {hidden}")
    return {
        "num_layers": fields.integer("encoder_layers", maximum=4096),
        "num_heads": heads,
        "head_dim": hidden // heads,
        "mlp_size": fields.integer("encoder_ffn_dim"),
    }


def _bart(fields: Fields, family: str, positions: Positions, start: int | None, form: dict[str, Any]) -> ModelConfig:
    """``form``: what norms and biases there are, as fields of ``EncoderConfig``; all have a bias of the head else."""
    shares = family != "marian" or fields.flag("share_encoder_decoder_embeddings", True)
    first = _LEARNED_OFFSET if positions == "learned" else 0
    if positions == "tensor2tensor":
        # Places are counted from the one after the padding token's id.
        first = fields.integer("pad_token_id", 1, minimum=0) + 1
    max_positions = fields.integer("max_position_embeddings", 1024)
    encoder = EncoderConfig(
        **encoder_sizes(fields),
        max_positions=max_positions,
        positions=positions,
        vocab_size=None if shares else fields.integer("vocab_size"),
        first_position=first,
        **{"head_bias": True, **form},
        **generation_entries(fields, start),
    )
    config = decoder_of(fields, encoder, max_positions)
    return config if shares else replace(config, vocab_size=fields.integer("decoder_vocab_size", config.vocab_size))


LAYER = {
    "attention_norm": "layers.{i}.self_attn_layer_norm",
    "q": "layers.{i}.self_attn.q_proj",
    "k": "layers.{i}.self_attn.k_proj",
    "v": "layers.{i}.self_attn.v_proj",
    "output": "layers.{i}.self_attn.out_proj",
    "mlp_norm": "layers.{i}.final_layer_norm",
    "up": "layers.{i}.fc1",
    "down": "layers.{i}.fc2",
}
CROSS = {
    "cross_norm": "layers.{i}.encoder_attn_layer_norm",
    "cross_q": "layers.{i}.encoder_attn.q_proj",
    "cross_k": "layers.{i}.encoder_attn.k_proj",
    "cross_v": "layers.{i}.encoder_attn.v_proj",
    "cross_output": "layers.{i}.encoder_attn.out_proj",
}


def stack(name: str, layer: dict[str, str], convolutions: tuple[str, ...] = ()) -> StackLayout:
    """Names below ``model.encoder`` or ``model.decoder``."""
    return StackLayout(
        layer={role: f"model.{name}.{place}" for role, place in layer.items()},
        final_norm=f"model.{name}.layer_norm",
        embedding_norm=f"model.{name}.layernorm_embedding",
        positions=f"model.{name}.embed_positions",
        convolutions=convolutions,
    )


_TABLES = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens")
_STORED = EncoderDecoderLayout(_TABLES, stack("encoder", LAYER), stack("decoder", LAYER | CROSS))
_COMPUTED = replace(_STORED, ignored=(r"model\.(encoder|decoder)\.embed_positions\.weights?",))
_APART = replace(_STORED, embeddings=_TABLES[2:], encoder_embedding=_TABLES[1])
"""Each half has a vocabulary and a table of its own (Marian)."""


def _family(name: str, positions: Positions, start: int | None = None, **form: bool) -> EncoderDecoderFamily:
    read = partial(_bart, family=name, positions=positions, start=start, form=form)
    usual = _COMPUTED if positions == "tensor2tensor" else _STORED

    def layout(config: ModelConfig) -> EncoderDecoderLayout:
        return usual if config.encoder is None or config.encoder.vocab_size is None else _APART

    return EncoderDecoderFamily(name, read, layout)


FAMILIES = (
    _family("bart", "learned", normed_before=False, embedding_norm=True, final_norm=False, start=2),
    _family("mbart", "learned", embedding_norm=True),
    _family("pegasus", "sinusoid", start=0),
    _family("marian", "sinusoid", normed_before=False, final_norm=False, start=58100),
    _family("m2m_100", "tensor2tensor", head_bias=False, start=2),
)
