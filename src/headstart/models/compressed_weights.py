"""Weights of attention to compressed keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from headstart.models.linear_weights import LinearWeights, NormWeights


@dataclass(frozen=True)
class CompressorWeights:
    """How keys are made of what the tokens of a window give, beside the matrices."""

    places: Tensor
    """float32 [ratio, given] added to weights by their token's place in the window."""
    norm: NormWeights
    """[size] of the keys."""


@dataclass(frozen=True)
class CompressedWeights:
    """See ``CompressedConfig``."""

    down: LinearWeights
    """Rows: q_rank of the queries' state, head_dim of the key, what is given to compressed keys (as values, then as
    weights) and to the indexer's, and index_heads of its heads' shares."""
    q_norm: NormWeights
    """[q_rank]"""
    q_up: LinearWeights
    """[num_heads * head_dim + index_heads * index_dim, q_rank]"""
    kv_norm: NormWeights
    """[head_dim]"""
    compressors: tuple[CompressorWeights, ...]
    """Of compressed keys, and of the indexer's."""
    lower: LinearWeights
    """[groups * output_rank, num_heads * head_dim / groups]"""
    output: LinearWeights
    """[hidden, groups * output_rank]"""
    sinks: Tensor
    """float32 [num_heads]"""

    @property
    def linears(self) -> Iterator[LinearWeights]:
        yield from (self.down, self.output, self.lower, self.q_up)
