"""An encoder-decoder model's weights in one canonical form; as in ``models.weights``, but for what encoders add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from headstart.models.config import ModelConfig
from headstart.models.files import WeightsIdentity
from headstart.models.layer_selection import require_layers
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.weights import CrossWeights, LayerWeights


@dataclass(frozen=True)
class StackWeights:
    """An encoder or a decoder; what the family does not have is None or empty."""

    layers: tuple[LayerWeights, ...]
    embedding_norm: NormWeights | None = None
    final_norm: NormWeights | None = None
    positions: Tensor | None = None
    """[max_positions, hidden], the first position's row first; None: none are added, or they are computed."""
    relative: tuple[Tensor, ...] = ()
    """[bucket, head] for each layer, or once for all."""
    convolutions: tuple[LinearWeights, ...] = ()
    """[out, in * 3] of an encoder that reads audio."""
    embedding: Tensor | None = None
    """[vocab, hidden] of an encoder that reads a vocabulary of its own."""

    @property
    def cross(self) -> tuple[CrossWeights, ...]:
        """[layer] of a decoder; of an encoder none."""
        return tuple(layer.cross for layer in self.layers if layer.cross is not None)

    @property
    def linears(self) -> Iterator[LinearWeights]:
        """Every matrix."""
        for layer in self.layers:
            yield from layer.linears
        for cross in self.cross:
            yield from (cross.q, cross.kv, cross.output)
        yield from self.convolutions


@dataclass(frozen=True)
class EncoderDecoderWeights:
    """A whole model."""

    embedding: Tensor
    """[vocab, hidden] of the decoder, and of an encoder that has none of its own."""
    head: LinearWeights
    """[vocab, hidden]; the embedding itself where the head is tied."""
    encoder: StackWeights
    decoder: StackWeights
    identity: WeightsIdentity | None = None
    """As in ``DecoderWeights``."""


def select_decoder_layers(
    config: ModelConfig, weights: EncoderDecoderWeights, layers: Sequence[int]
) -> tuple[ModelConfig, EncoderDecoderWeights]:
    """The model with the whole encoder and only ``layers`` of the decoder, in the order given.

    Raises:
        ConfigError: ``layers`` is empty or names one that the model does not have.
    """
    require_layers(layers, config.num_layers)
    whole = weights.decoder
    relative = tuple(whole.relative[layer] for layer in layers) if len(whole.relative) > 1 else whole.relative
    decoder = replace(
        whole,
        layers=tuple(whole.layers[layer] for layer in layers),
        relative=relative,
    )
    return (
        replace(config, layers=tuple(config.layers[layer] for layer in layers)),
        replace(weights, decoder=decoder, identity=None),
    )
