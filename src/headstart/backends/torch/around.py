"""What stands around the layers of a pass: second paths, several streams, and what layers read beside them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.linear import Linear
from headstart.backends.torch.norms import Norm
from headstart.models.config import ModelConfig
from headstart.models.layers.layer import run_side
from headstart.models.layers.layer_input import inputs_of_layers, run_layer_input
from headstart.models.layers.streams import corrected, merged, predicted, spread
from headstart.models.stored_rows import rows_in_file
from headstart.models.weights import (
    LayerInputsWeights,
    LayerInputWeights,
    SideWeights,
    StreamEndsWeights,
    StreamsWeights,
)


class Side:
    """A second path beside the mixer: [row, hidden] -> [row, hidden]."""

    def __init__(self, config: ModelConfig, weights: SideWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.down, self.up = Linear(weights.down, dtype, device), Linear(weights.up, dtype, device)
        self.norm = Norm.of(config, weights.norm, device)

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return run_side(self, x)


class Streams:
    """How one layer predicts and corrects the streams [row, stream, hidden]."""

    def __init__(self, config: ModelConfig, weights: StreamsWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.router, self.predict, self.correct = (
            Linear(each, dtype, device) for each in (weights.router, weights.predict, weights.correct)
        )
        self.router_norm = Norm.of(config, weights.router_norm, device)
        self.scale = None if weights.scale is None else weights.scale.to(device, dtype)

    @property
    def nbytes(self) -> int:
        return self.router.nbytes + self.predict.nbytes + self.correct.nbytes

    def predicted(self, streams: Tensor) -> Tensor:
        return predicted(self, streams)

    def corrected(self, streams: Tensor, computed: Tensor) -> Tensor:
        return corrected(self, streams, computed)


class StreamEnds:
    """Where streams begin and end."""

    def __init__(self, weights: StreamEndsWeights, dtype: torch.dtype, device: torch.device) -> None:
        self._spread = [Linear(each, dtype, device) for each in weights.spread]
        self._merge = [Linear(each, dtype, device) for each in weights.merge]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self._spread, *self._merge))

    def spread(self, x: Tensor) -> Tensor:
        """[row, hidden] -> [row, stream, hidden]"""
        return spread(self._spread, x)

    def merged(self, streams: Tensor) -> Tensor:
        """[row, stream, hidden] -> [row, hidden]"""
        return merged(self._merge, streams)


class LayerInput:
    """How one layer reads its input."""

    def __init__(
        self, config: ModelConfig, weights: LayerInputWeights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.gate, self.output = Linear(weights.gate, dtype, device), Linear(weights.output, dtype, device)
        self.norm, self.activation = Norm.of(config, weights.norm, device), config.mlp.activation

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + self.output.nbytes

    def __call__(self, x: Tensor, given: Tensor) -> Tensor:
        """What is added to the stream, of [row, hidden] and the input [row, size]."""
        return run_layer_input(self, x, given, self.activation)


class _Table:
    """What each token has for the layers: ids [row] -> [row, count * size].

    It is large and a pass reads few of its rows, so on the processor they stay in the file, where that can be.
    """

    def __init__(self, weights: LayerInputsWeights, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._in_file = rows_in_file(weights.whole) if device.type == "cpu" else None
        self._held = None if self._in_file is not None else weights.table.to(device, dtype)

    @property
    def nbytes(self) -> int:
        return 0 if self._held is None else self._held.nbytes

    def __call__(self, ids: Tensor) -> Tensor:
        if self._in_file is not None:
            return self._in_file(ids).to(self._dtype)
        assert self._held is not None
        return F.embedding(ids, self._held)


class LayerInputs:
    """What all layers read."""

    def __init__(
        self, config: ModelConfig, weights: LayerInputsWeights, dtype: torch.dtype, device: torch.device
    ) -> None:
        assert config.layer_inputs is not None
        self.config = config.layer_inputs
        self.projection = Linear(weights.projection, dtype, device)
        self.norm = Norm.of(config, weights.norm, device)
        self.table = _Table(weights, dtype, device)

    @property
    def nbytes(self) -> int:
        return self.projection.nbytes + self.table.nbytes

    def __call__(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """[row] ids, [row, hidden] -> [row, count, size]."""
        return inputs_of_layers(self.config, self, tokens, embedded)
