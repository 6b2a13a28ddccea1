"""Some of a model's layers, named one by one or evenly spread, and the model that has only these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headstart.errors import ConfigError
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights


def select_layers(
    config: ModelConfig, weights: DecoderWeights, layers: Sequence[int]
) -> tuple[ModelConfig, DecoderWeights]:
    """The model with only ``layers``, in the order given; its tensors are shared, not copied.

    Raises:
        ConfigError: ``layers`` is empty or names one that the model does not have.
    """
    require_layers(layers, config.num_layers)
    return (
        replace(config, layers=tuple(config.layers[layer] for layer in layers)),
        weights.with_layers([weights.layers[layer] for layer in layers]),
    )


def spread_layers(count: int, available: int) -> list[int]:
    """``count`` of the layers ``0 .. available - 1``, evenly spread from the first to the last."""
    if count == 1:
        return [0]
    return [round(i * (available - 1) / (count - 1)) for i in range(count)]


def choose_layers(wanted: int | Sequence[int], available: int) -> list[int]:
    """Layers as ``wanted`` lists them, or that many, evenly spread.

    Raises:
        ConfigError: none are wanted, too many, or one that the model does not have.
    """
    if not isinstance(wanted, int):
        require_layers(wanted, available)
        return list(wanted)
    if not 1 <= wanted <= available:
        raise ConfigError(f"layers is {wanted}; this model has {available}, so give 1 to {available}.")
    return spread_layers(wanted, available)


def require_layers(layers: Sequence[int], available: int) -> None:
    """Refuse what names no layers.

    Raises:
        ConfigError: none are named, or one that is not there.
    """
    if not layers or not all(0 <= layer < available for layer in layers):
        raise ConfigError(f"layers is {list(layers)}, but must name some of the model's 0 to {available - 1}.")
