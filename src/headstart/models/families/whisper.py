"""Whisper: an encoder that reads audio, and a decoder of text.

Sources: the configuration and modelling files of transformers (models/whisper); Radford et al. 2022.
"""

from __future__ import annotations

from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder import EncoderConfig
from headstart.models.families.bart import CROSS, LAYER, base_from_hf, stack
from headstart.models.families.encoder_decoder import EncoderDecoderFamily, EncoderDecoderLayout, generation_entries
from headstart.models.families.fields import Fields


def _whisper(fields: Fields) -> ModelConfig:
    hidden, heads = fields.integer("d_model"), fields.integer("encoder_attention_heads")
    if hidden % heads:
        raise fields.bad("encoder_attention_heads", heads, f"a divisor of d_model, {hidden}")
    encoder = EncoderConfig(
        num_layers=fields.integer("encoder_layers", maximum=4096),
        num_heads=heads,
        head_dim=hidden // heads,
        mlp_size=fields.integer("encoder_ffn_dim"),
        max_positions=fields.integer("max_source_positions", 1500),
        positions="learned",
        key_bias=False,
        mel_bins=fields.integer("num_mel_bins", 80),
        **generation_entries(fields),
    )
    return base_from_hf(fields, "whisper", encoder, fields.integer("max_target_positions", 448))


_LAYOUT = EncoderDecoderLayout(
    ("model.decoder.embed_tokens",),
    stack("encoder", LAYER, ("model.encoder.conv1", "model.encoder.conv2")),
    stack("decoder", LAYER | CROSS),
    head="proj_out",
)

FAMILIES = (EncoderDecoderFamily("whisper", "whisper", _whisper, lambda config: _LAYOUT),)
