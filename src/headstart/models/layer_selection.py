"""Some of a model's layers, named one by one or evenly spread, and the model that has only these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headstart.errors import ConfigError
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.weights import DecoderWeights


def select_layers(
    config: ModelConfig, weights: DecoderWeights, layers: Sequence[int]
) -> tuple[ModelConfig, DecoderWeights]:
    """The model with only ``layers``, in the order given; its tensors are shared, not copied.

    Raises:
        ConfigError: ``layers`` is empty or names one that the model does not have, or one without the layer before it
            whose keys and values it reads.
    """
    require_layers(layers, config.num_layers)
    return (
        replace(config, layers=tuple(_moved(config, layers, place) for place in range(len(layers)))),
        weights.with_layers([weights.layers[layer] for layer in layers]),
    )


def _moved(config: ModelConfig, layers: Sequence[int], place: int) -> LayerConfig:
    """A layer as it is in its new place."""
    layer = config.layers[layers[place]]
    if layer.reads is None:
        return layer
    if layer.reads not in layers[:place]:
        raise ConfigError(
            f"layers is {list(layers)}, but layer {layers[place]} reads the keys and values of layer {layer.reads}; "
            "name that one before it, or leave both out."
        )
    return replace(layer, reads=list(layers).index(layer.reads))


def spread_layers(count: int, available: int) -> list[int]:
    """``count`` of the layers ``0 .. available - 1``, evenly spread from the first to the last."""
    if count == 1:
        return [0]
    return [round(i * (available - 1) / (count - 1)) for i in range(count)]


def require_layers(layers: Sequence[int], available: int) -> None:
    """Refuse what names no layers.

    Raises:
        ConfigError: none are named, or one that is not there.
    """
    if not layers or not all(0 <= layer < available for layer in layers):
        raise ConfigError(f"layers is {list(layers)}, but must name some of the model's 0 to {available - 1}.")
