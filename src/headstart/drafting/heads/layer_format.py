"""What the formats of heads with decoder layers share: their layers' description, and an embedding of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headstart.drafting.methods.dflash.head import BlockConfig
from headstart.drafting.methods.eagle.head import EagleConfig
from headstart.errors import CheckpointError


def describe_layers(config: EagleConfig | BlockConfig, model_type: str) -> dict[str, Any]:
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


def require_embedding(embedding: Tensor, config: EagleConfig | BlockConfig, source: str) -> None:
    """Refuse an embedding of another shape.

    Raises:
        CheckpointError: naming both.
    """
    if embedding.shape != (config.vocab_size, config.hidden_size):
        wanted = [config.vocab_size, config.hidden_size]
        raise CheckpointError(f"{source}: embed_tokens.weight is {list(embedding.shape)}, not {wanted}.")
