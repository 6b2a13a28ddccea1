"""Whisper: an encoder that reads audio, and a decoder of text.

Sources: the configuration and modelling files of transformers (models/whisper); Radford et al. 2022.
"""

from __future__ import annotations

from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder import EncoderConfig
from headstart.models.families.bart import CROSS, LAYER, decoder_of, encoder_sizes, stack
from headstart.models.families.encoder_decoder import EncoderDecoderFamily, EncoderDecoderLayout, generation_entries
from headstart.models.families.fields import Fields

_START = 50257
"""What outputs begin with where files do not say it: the multilingual vocabulary's."""


def _whisper(fields: Fields) -> ModelConfig:
    encoder = EncoderConfig(
        **encoder_sizes(fields),
        max_positions=fields.integer("max_source_positions", 1500),
        positions="learned",
        key_bias=False,
        mel_bins=fields.integer("num_mel_bins", 80),
        alignment_heads=_heads(fields),
        smoothed_over=_odd(fields, "median_filter_width", 7),
        **generation_entries(fields, _START),
    )
    return decoder_of(fields, encoder, fields.integer("max_target_positions", 448))


def _heads(fields: Fields) -> tuple[tuple[int, int], ...]:
    """``alignment_heads`` of the generation settings."""
    key = "alignment_heads"
    value = fields.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(i) is int and 0 <= i < 4096 for i in pair)
        for pair in value
    ):
        raise fields.bad(key, value, "a list of pairs of a layer and a head")
    return tuple((layer, head) for layer, head in value)


def _odd(fields: Fields, key: str, default: int) -> int:
    value = fields.integer(key, default, maximum=99)
    if value % 2 == 0:
        raise fields.bad(key, value, "an odd number")
    return value


_LAYOUT = EncoderDecoderLayout(
    ("model.decoder.embed_tokens",),
    stack("encoder", LAYER, ("model.encoder.conv1", "model.encoder.conv2")),
    stack("decoder", LAYER | CROSS),
    head="proj_out",
)

FAMILIES = (EncoderDecoderFamily("whisper", _whisper, lambda config: _LAYOUT),)
