"""What the formats of heads with decoder layers share: their layers' description, and an embedding of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headstart.drafting.heads.files import require_numbers
from headstart.drafting.heads.modules import MOST_LAYERS, LayersConfig
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.rope import rope_of

SLIDING = "sliding_attention"
"""What a layer with a window is called in ``layer_types``."""
_WIDEST = 1 << 30
"""Wider windows are as good as none."""


def read_layers(
    layer: Fields, target: ModelConfig, source: str, target_hidden: int | None = None, layers: int | None = None
) -> dict[str, Any]:
    """What such a configuration says of a head: fields of ``LayersConfig``.

    Args:
        target_hidden: size of the states that it reads, its own unless given.
        layers: how many there are where it does not say so.

    Raises:
        CheckpointError: an entry is missing or senseless, or the head is made for another target.
    """
    hidden, heads, vocab_size = (layer.integer(key) for key in ("hidden_size", "num_attention_heads", "vocab_size"))
    head_dim, read = layer.integer("head_dim", hidden // heads), target_hidden or hidden
    if read != target.hidden_size:
        raise CheckpointError(
            f"{source} is made for a target of {read} elements a state; this one has {target.hidden_size}; "
            "name the model that it was trained for."
        )
    if not target.vocab_size <= vocab_size:
        raise CheckpointError(
            f"{source} is made for a vocabulary of {vocab_size}; this target's has {target.vocab_size} tokens."
        )
    return {
        "hidden_size": hidden,
        "target_hidden_size": read,
        "vocab_size": vocab_size,
        "num_heads": heads,
        "num_kv_heads": layer.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "mlp_size": layer.integer("intermediate_size"),
        "num_layers": layer.integer("num_hidden_layers", layers, maximum=MOST_LAYERS),
        "rope": rope_of(layer, head_dim),
        "norm_eps": layer.number("rms_norm_eps", 1e-6),
        "attention_bias": layer.flag("attention_bias", False),
        "max_positions": layer.integer("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
    }


def describe_layers(config: LayersConfig, model_type: str) -> dict[str, Any]:
    """The layers as the configuration of a decoder of the kind that they are of."""
    return {
        "model_type": model_type,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": config.rope.scaling,
        "vocab_size": config.vocab_size,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": False,
    }


def require_embedding(embedding: Tensor, config: LayersConfig, source: str) -> None:
    """Refuse an embedding of another shape, or one that holds what is no number.

    Raises:
        CheckpointError: naming both.
    """
    if embedding.shape != (config.vocab_size, config.hidden_size):
        wanted = [config.vocab_size, config.hidden_size]
        raise CheckpointError(f"{source}: embed_tokens.weight is {list(embedding.shape)}, not {wanted}.")
    if not embedding.is_floating_point():
        raise CheckpointError(f"{source}: embed_tokens.weight holds {embedding.dtype}, not torch.float32.")
    require_numbers({"embed_tokens.weight": embedding}, source)


def describe_windows(config: LayersConfig) -> dict[str, Any]:
    """The entries of layers with windows.

    Raises:
        CheckpointError: files have no place for them.
    """
    if not any(config.windows):
        return {}
    widest = max(config.windows)
    if set(config.windows) - {0, widest}:
        raise CheckpointError("files of heads have one window for all layers, this head has several; use it as it is.")
    return {
        "layer_types": [SLIDING if window else "full_attention" for window in config.windows],
        "sliding_window": widest,
        "use_sliding_window": True,
    }


def windows_of(layer: Fields, num_layers: int, own: Fields | None = None) -> tuple[int, ...]:
    """[layer] how many positions its rows see, their own included, 0: all; empty where none has a window.

    Args:
        layer: the layers' configuration.
        own: what else may name the window.

    Raises:
        CheckpointError: an entry is missing or senseless.
    """
    types = layer.get("layer_types") or []
    if not isinstance(types, list) or not set(map(str, types)) <= {"full_attention", SLIDING}:
        raise layer.bad("layer_types", types, f"a list of full_attention and {SLIDING}")
    if SLIDING not in types:
        return ()
    if len(types) != num_layers:
        raise layer.bad("layer_types", types, f"a list of {num_layers}, one for each layer")
    given = layer.optional_integer("sliding_window", maximum=MAX_POSITIONS)
    if given is None and own is not None:
        given = own.optional_integer("swa_window_size", maximum=MAX_POSITIONS)
    if given is None:
        raise layer.missing("sliding_window")
    window = min(given, _WIDEST)
    return tuple(window if each == SLIDING else 0 for each in types)
