"""What families of encoder-decoder models share: where their tensors are, and what outputs begin and end with."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from headstart.models.config import ModelConfig
from headstart.models.families.fields import MAX_SIZE, Fields


@dataclass(frozen=True)
class StackLayout:
    """Names of the tensors of an encoder or a decoder, without their ending ``.weight`` or ``.bias``.

    ``layer``: role -> name, with ``{i}`` for the layer. Roles are the fields of ``LayerWeights``, ``qkv`` split in
    ``q``, ``k``, ``v``, and a gated MLP's ``up`` in ``gate`` and ``up``; a decoder's cross attention has
    ``cross_norm``, ``cross_q``, ``cross_k``, ``cross_v`` and ``cross_output``.
    """

    layer: Mapping[str, str]
    final_norm: str
    embedding_norm: str = ""
    positions: str = ""
    relative: str = ""
    """Table of relative biases, with ``{i}`` for the layer."""
    convolutions: tuple[str, ...] = ()
    """Of an encoder that reads audio."""


@dataclass(frozen=True)
class EncoderDecoderLayout:
    """Names of a family's tensors in one kind of file."""

    embeddings: tuple[str, ...]
    """Where the table of the decoder's tokens, which the encoder shares, may be found; the first that is there counts,
    and the others hold the same."""
    encoder: StackLayout
    decoder: StackLayout
    head: str = "lm_head"
    head_bias: str = "final_logits_bias"
    """Whole name."""
    encoder_embedding: str = ""
    """Table of an encoder that reads a vocabulary of its own."""
    ignored: tuple[str, ...] = ()
    """Patterns of whole names of tensors that carry nothing: tables that are computed."""


@dataclass(frozen=True)
class EncoderDecoderFamily:
    """A kind of encoder-decoder model. ``read`` and ``gguf`` read a description, ``layout`` and ``gguf_layout`` name
    tensors."""

    name: str
    """And ``model_type`` in config.json."""
    read: Callable[[Fields], ModelConfig]
    layout: Callable[[ModelConfig], EncoderDecoderLayout]
    architecture: str = ""
    """``general.architecture`` in GGUF, which families may share; "": there is none."""
    gguf: Callable[[Fields, Container[str]], ModelConfig] | None = None
    """Of the metadata and the names of the tensors."""
    gguf_layout: Callable[[ModelConfig], EncoderDecoderLayout] | None = None


def generation_entries(fields: Fields, start: int | None = None) -> dict[str, Any]:
    """``EncoderConfig``'s fields of what outputs begin and end with, and what is never said.

    An output begins with ``decoder_start_token_id``, or where there is none with ``bos_token_id``, as in transformers.
    ``start``: the former where files leave it out (in transformers, the default of the family's configuration).
    """
    if start is None or start >= fields.integer("vocab_size") or fields.has("decoder_start_token_id"):
        start = fields.optional_integer("decoder_start_token_id", minimum=0)
    last = fields.token_ids("forced_eos_token_id")
    return {
        "start_token_id": fields.optional_integer("bos_token_id", minimum=0) if start is None else start,
        "forced_first_token_id": fields.optional_integer("forced_bos_token_id", minimum=0),
        "forced_last_token_id": last[0] if last else None,
        "never": (*_sequences(fields, "bad_words_ids"), *((token,) for token in fields.token_ids("suppress_tokens"))),
        "never_first": fields.token_ids("begin_suppress_tokens"),
        "latest_start": fields.optional_integer("max_initial_timestamp_index", minimum=0),
    }


def _sequences(fields: Fields, key: str) -> tuple[tuple[int, ...], ...]:
    value = fields.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(ids, list) and ids and all(type(i) is int and 0 <= i <= MAX_SIZE for i in ids) for ids in value
    ):
        raise fields.bad(key, value, "a list of lists of token ids")
    return tuple(map(tuple, value))
