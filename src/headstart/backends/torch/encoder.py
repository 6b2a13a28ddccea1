"""Encoders in PyTorch: tokens, or features of audio, become states that a decoder reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.backends.torch.head_kit import LinearLayer
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.norms import Norm
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder import EncoderConfig
from headstart.models.encoder_decoder_weights import StackWeights
from headstart.models.layers.cross_attention import StackLayer
from headstart.models.layers.positions import distance_buckets, sinusoids
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.weights import LayerWeights
from headstart.passes.batch import EncoderInput

MakeLinear = Callable[[LinearWeights], LinearLayer]
"""Packs a matrix for its products."""
_ROWS = 512
"""Rows of attention that are computed at once: biases take memory for each of them."""


class StackMatrices:
    """The matrices and norms of one layer."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, linear: MakeLinear, device: torch.device) -> None:
        assert weights.attention_norm is not None
        assert weights.mlp_norm is not None
        self.attention_norm = Norm.of(config, weights.attention_norm, device)
        self.mlp_norm = Norm.of(config, weights.mlp_norm, device)
        self.qkv, self.output, self.up, self.down = map(linear, weights.linears)

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in (self.qkv, self.output, self.up, self.down))


class Embedder:
    """What a stack's first layer reads: embeddings of tokens, scaled, placed, and normed where the family does so."""

    def __init__(
        self,
        config: ModelConfig,
        weights: StackWeights,
        embedding: Tensor,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._embedding = embedding
        positions = position_table(config, weights, max_positions)
        self._positions = None if positions is None else positions.to(device, dtype)
        self._norm = optional_norm(config, weights.embedding_norm, device)

    @property
    def nbytes(self) -> int:
        """Size of the table of tokens in bytes."""
        return self._embedding.nbytes

    def tokens(self, tokens: Tensor, positions: Tensor, inputs: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[row] ids and positions -> [row, hidden]; ``inputs``: as in ``Decoder.embed``."""
        hidden = F.embedding(tokens, self._embedding).to(self._dtype)
        if self._config.embedding.scale != 1.0:
            hidden = hidden * self._config.embedding.scale
        if inputs is not None:
            hidden = hidden.index_copy(0, *inputs)
        return self.placed(hidden, positions)

    def placed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """[row, hidden], which know no places yet."""
        if self._positions is not None:
            hidden = hidden + F.embedding(positions, self._positions)
        return hidden if self._norm is None else self._norm(hidden)


def position_table(config: ModelConfig, weights: StackWeights, count: int) -> Tensor | None:
    """[count, hidden] what is added to rows by their positions; None: nothing is."""
    encoder = config.encoder
    assert encoder is not None
    if weights.positions is not None or encoder.positions not in ("sinusoid", "tensor2tensor"):
        return weights.positions
    return sinusoids(encoder.positions, encoder.first_position + count, config.hidden_size)[encoder.first_position :]


class _Convolution:
    """Over three neighbouring frames. On accelerators a product of matrices: their convolutions round float32 to TF32
    unless the whole process forbids it."""

    def __init__(self, weights: LinearWeights, dtype: torch.dtype, device: torch.device) -> None:
        matrix = weights.weight.to(device, dtype)
        self._weight = matrix.view(len(matrix), -1, 3)
        self._bias = None if weights.bias is None else weights.bias.to(device, dtype)
        self.nbytes = matrix.nbytes

    def __call__(self, x: Tensor, stride: int) -> Tensor:
        """[1, in, frame] -> [1, out, every so many frames]."""
        if x.device.type != "cpu":
            frames = F.pad(x, (1, 1)).unfold(2, 3, stride).transpose(1, 2).flatten(2)
            return F.linear(frames, self._weight.flatten(1), self._bias).transpose(1, 2)
        return F.conv1d(x, self._weight, self._bias, stride=stride, padding=1)


class Encoder:
    """Reads one input at a time, so that its states do not depend on what else is read. Runs under
    ``torch.inference_mode``."""

    def __init__(
        self,
        config: ModelConfig,
        weights: StackWeights,
        embedding: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        linear: MakeLinear | None = None,
    ) -> None:
        """``dtype``: of the rows. ``linear``: None for PyTorch's products in it."""
        assert config.encoder is not None
        self.config: EncoderConfig = config.encoder
        self.device = device
        self.embedder = Embedder(config, weights, embedding, config.encoder.max_positions, dtype, device)
        make = linear or partial(Linear, dtype=dtype, device=device)
        self.layers = [StackMatrices(config, layer, make, device) for layer in weights.layers]
        self.final_norm = optional_norm(config, weights.final_norm, device)
        self._layer = StackLayer(
            config.encoder.head_dim, config.mlp.activation, config.mlp.gated, config.encoder.normed_before
        )
        self._scale = config.encoder.head_dim**-0.5 if config.attention.scale is None else config.attention.scale
        self._relative = [table.to(device, dtype) for table in weights.relative]
        self._dtype = dtype
        self._convolutions = [_Convolution(each, dtype, device) for each in weights.convolutions]

    @property
    def nbytes(self) -> int:
        """Size of the matrices in bytes."""
        return sum(layer.nbytes for layer in self.layers) + sum(each.nbytes for each in self._convolutions)

    def read(self, source: EncoderInput) -> Tensor:
        """States [position, hidden]."""
        if source.features is None:
            return self.read_tokens(torch.tensor(source.tokens, device=self.device))
        return self.read_features(torch.from_numpy(source.features))

    def read_tokens(self, tokens: Tensor) -> Tensor:
        """[position] ids -> states [position, hidden]."""
        return self._run(self.embedder.tokens(tokens, torch.arange(len(tokens), device=self.device)))

    def read_features(self, features: Tensor) -> Tensor:
        """[mel bin, frame] -> states [position, hidden], a position for every two frames."""
        hidden = features.to(self.device, self._dtype)[None]
        for stride, convolution in enumerate(self._convolutions, start=1):
            hidden = F.gelu(convolution(hidden, stride))
        rows = hidden[0].T.contiguous()
        return self._run(self.embedder.placed(rows, torch.arange(len(rows), device=self.device)))

    def _run(self, hidden: Tensor) -> Tensor:
        biases = [self._windows(table, len(hidden)) for table in self._relative]
        for index, parts in enumerate(self.layers):
            bias = biases[min(index, len(biases) - 1)] if biases else None
            hidden = self._layer.attention(parts, hidden, partial(self._attend, bias=bias))
            hidden = self._layer.channel(parts, hidden)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def _windows(self, table: Tensor, count: int) -> Tensor:
        """[head, count, count]: of row r the biases of all keys are at ``count - 1 - r``. A view, which takes no
        memory."""
        assert self.config.relative is not None
        distances = torch.arange(count - 1, -count, -1, device=self.device)
        by_distance = table[distance_buckets(distances, self.config.relative, both_sides=True)]
        return by_distance.T.contiguous().unfold(1, count, 1)

    def _attend(self, heads: Tensor, bias: Tensor | None) -> Tensor:
        """[row, 3 * head, head_dim] -> [row, head * head_dim]."""
        count = len(heads)
        q, k, v = heads.view(count, 3, -1, heads.shape[2]).permute(1, 2, 0, 3)
        mixed = []
        for first in range(0, count, _ROWS):
            rows = torch.arange(first, min(first + _ROWS, count), device=self.device)
            mask = None if bias is None else bias.index_select(1, count - 1 - rows)[None]
            queries = q[None, :, first : first + _ROWS]
            mixed.append(F.scaled_dot_product_attention(queries, k[None], v[None], mask, scale=self._scale)[0])
        return torch.cat(mixed, dim=1).transpose(0, 1).flatten(1)


def optional_norm(config: ModelConfig, weights: NormWeights | None, device: torch.device) -> Norm | None:
    """None where there is none."""
    return None if weights is None else Norm.of(config, weights, device)
