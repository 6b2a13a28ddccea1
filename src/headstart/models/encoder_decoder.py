"""What an encoder-decoder model has beside the description of its decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Positions = Literal["relative", "learned", "sinusoid", "tensor2tensor"]
"""How tokens know their place. "relative": a bias on attention scores by distance (T5). The others are added to the
input: a stored table; sines and cosines with frequencies of 10000^(-2i/d) (Marian, Pegasus), unless a table of them is
stored; or with frequencies of 10000^(-i/(d/2 - 1)) (tensor2tensor, M2M100)."""


@dataclass(frozen=True)
class RelativeBias:
    """A bias for each head and bucket of distances (Raffel et al. 2020, section 2.1)."""

    buckets: int
    max_distance: int
    """All distances from here on share a bucket."""
    in_every_layer: bool = False
    """Every layer has a table of its own (UMT5); else all layers share the first one's."""


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder of an encoder-decoder model, and what both halves have in common. Lengths are in positions."""

    num_layers: int
    num_heads: int
    head_dim: int
    mlp_size: int
    max_positions: int
    """Most positions that it reads."""
    positions: Positions
    """Of encoder and decoder alike."""
    vocab_size: int | None = None
    """Tokens of a vocabulary of its own, which it reads; None: it reads the decoder's."""
    first_position: int = 0
    """Rows of a table of positions that stand before the first position's."""
    relative: RelativeBias | None = None
    normed_before: bool = True
    """Norms stand before attention and channel part; False: after the sum with the residual (BART, Marian)."""
    embedding_norm: bool = False
    """Embeddings are normed (BART, mBART)."""
    final_norm: bool = True
    """The last layer's output is normed."""
    head_bias: bool = False
    """A bias may be added to the logits ("final_logits_bias")."""
    key_bias: bool = True
    """Where the other projections of attention have biases, keys have one, too."""
    mel_bins: int | None = None
    """Of the audio features that it reads in place of tokens: two convolutions make a position of two frames (Whisper).
    None: it reads tokens."""
    start_token_id: int | None = None
    """What every output begins with; None: the model's files do not say."""
    forced_first_token_id: int | None = None
    """The token after it, by the model's generation settings (``forced_bos_token_id``); None: the model's choice."""
    forced_last_token_id: int | None = None
    """The last token of an output that is cut at its length (``forced_eos_token_id``); None: the model's choice."""
    never: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never said (``bad_words_ids``, ``suppress_tokens``)."""
    latest_start: int | None = None
    """Of a model that says times: how many of them after 0 an output may begin with
    (``max_initial_timestamp_index``); None: any."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) of cross attention that follows the speech (``alignment_heads``); empty: the files do not say."""
    smoothed_over: int = 7
    """Positions over which the weights of these heads are smoothed (``median_filter_width``)."""
    never_first: tuple[int, ...] = ()
    """Tokens that no output begins with (``begin_suppress_tokens``)."""
