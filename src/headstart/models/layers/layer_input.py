"""What a layer reads of a row beside its stream (Gemma 3n and 4: transformers' models/gemma3n and gemma4)."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

from headstart.models.config import LayerInputsConfig
from headstart.models.layers.layer import ACTIVATIONS, Operation


class LayerInputParts(Protocol):
    """By the names of ``LayerInputWeights``."""

    @property
    def gate(self) -> Operation: ...
    @property
    def output(self) -> Operation: ...
    @property
    def norm(self) -> Operation: ...


class LayerInputsParts(Protocol):
    """By the names of ``LayerInputsWeights``."""

    @property
    def projection(self) -> Operation: ...
    @property
    def norm(self) -> Operation: ...
    @property
    def table(self) -> Operation:
        """Ids [row] -> [row, count * size]."""
        ...


def inputs_of_layers(config: LayerInputsConfig, parts: LayerInputsParts, tokens: Tensor, embedded: Tensor) -> Tensor:
    """Ids [row] and what the first layer reads [row, hidden] -> [row, count, size]."""
    shape = (len(tokens), config.count, config.size)
    projected = parts.projection(embedded) / math.sqrt(embedded.shape[-1])
    known = tokens.where(tokens < config.vocab_size, 0)
    looked_up = parts.table(known) * math.sqrt(config.size)
    return (parts.norm(projected.view(shape)) + looked_up.view(shape)) * 2**-0.5


def run_layer_input(parts: LayerInputParts, x: Tensor, given: Tensor, activation: str) -> Tensor:
    """What is added to the stream: of what the layer computed [row, hidden], and its input [row, size]."""
    opened = ACTIVATIONS[activation](parts.gate(x))
    return parts.norm(parts.output(opened * given))
