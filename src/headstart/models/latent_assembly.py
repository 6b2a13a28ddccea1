"""How latent attention is put together: the part of ``assembly`` that is its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from headstart.models.config import LatentConfig, LayerConfig
from headstart.models.layout_tensors import LayoutTensors, require_weights
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import FileMatrix, MatrixPart
from headstart.models.weights import LatentWeights


def latent_weights(tensors: LayoutTensors, index: int, latent: LatentConfig, layer: LayerConfig) -> LatentWeights:
    """Of the layer of this number."""
    config = tensors.config
    heads = config.num_heads * config.head_dim
    gates = config.num_heads * (latent.value_dim if config.attention.gate == "element" else 1)
    states = {"kv_down": latent.kv_rank + latent.rope_dim}
    raised = {"q_up": heads}
    indexer = latent.indexer_of(layer)
    if indexer is not None:
        weights = {"index_gate": indexer.weights} if indexer.weights else {}
        states |= {"index_key": indexer.dim, **weights, "index_shares": indexer.heads}
        raised |= {"index_q": indexer.heads * indexer.dim}
    q_up = q_norm = index_norm = index_places = None
    if indexer is not None:
        if indexer.weights:
            index_places = tensors.vector(index, "index_places", indexer.dim, indexer.pool)
        weight = tensors.fetch(tensors.name_of(index, "index_norm"), (indexer.dim,)).float()
        bias = tensors.bias_of(index, "index_norm", indexer.dim)
        index_norm = NormWeights(tensors.converted("index_norm", weight), bias)
    if latent.q_rank is None:
        states = {"q": heads} | states
    else:
        states = {"q_down": latent.q_rank} | states
        q_up = tensors.linear(index, raised, latent.q_rank, False)
        q_norm = tensors.norm(tensors.layout.layer["q_norm"].format(i=index), "q_norm", latent.q_rank)
    key_up, value_up = (
        _parted(tensors, index, latent) if "kv_up" in tensors.layout.layer else _stacked_by_head(tensors, index, latent)
    )
    return LatentWeights(
        down=tensors.linear(index, states, config.hidden_size, latent.bias),
        q_norm=q_norm,
        q_up=q_up,
        kv_norm=tensors.norm(tensors.layout.layer["kv_norm"].format(i=index), "kv_norm", latent.kv_rank),
        key_up=key_up,
        value_up=value_up,
        output=tensors.linear(
            index, {"output": config.hidden_size}, config.num_heads * latent.value_dim, config.attention.output_bias
        ),
        gate=tensors.linear(index, {"attention_gate": gates}, config.hidden_size, False)
        if config.attention.gate
        else None,
        sinks=tensors.vector(index, "sinks", config.num_heads) if config.attention.sinks else None,
        index_norm=index_norm,
        index_places=index_places,
    )


def _parted(tensors: LayoutTensors, index: int, latent: LatentConfig) -> tuple[LinearWeights, LinearWeights]:
    """What takes queries to the states' space and values from there, of one tensor
    [head * (plain_dim + value_dim), kv_rank], keys first."""
    heads, rank = tensors.config.num_heads, latent.kv_rank
    size = latent.plain_dim + latent.value_dim
    whole = tensors.matrix_of("kv_up", tensors.name_of(index, "kv_up"), (heads * size, rank))
    order = np.arange(heads * size, dtype=np.int32) if whole.order is None else whole.order
    of_values = order.reshape(heads, size)[:, latent.plain_dim :].ravel()

    def read(keys: bool) -> Tensor:
        both = whole.read().to(tensors.dtype).view(heads, size, rank)
        return both[:, : latent.plain_dim].transpose(1, 2) if keys else both[:, latent.plain_dim :]

    bits = tensors.stored_bits(whole.name)
    key_up = MatrixPart(whole.name, heads * rank, lambda: read(True).flatten(0, 1))
    value_up = MatrixPart(
        whole.name, heads * latent.value_dim, lambda: read(False).flatten(0, 1), whole.stored, of_values
    )
    return (
        LinearWeights(FileMatrix((key_up,), latent.plain_dim, tensors.dtype), stored_bits=bits),
        LinearWeights(FileMatrix((value_up,), rank, tensors.dtype), stored_bits=bits),
    )


def _stacked_by_head(tensors: LayoutTensors, index: int, latent: LatentConfig) -> tuple[LinearWeights, LinearWeights]:
    """The same of two tensors, [head, kv_rank, plain_dim] and [head, value_dim, kv_rank]."""
    return (
        _stack(tensors, index, "key_up", latent.kv_rank, latent.plain_dim),
        _stack(tensors, index, "value_up", latent.value_dim, latent.kv_rank),
    )


def _stack(tensors: LayoutTensors, index: int, role: str, outputs: int, inputs: int) -> LinearWeights:
    """[head * out, in] of a tensor [head, out, in]."""
    name, shape = tensors.name_of(index, role), (tensors.config.num_heads, outputs, inputs)

    def read() -> Tensor:
        return tensors.fetch(name, shape).to(tensors.dtype).flatten(0, 1)

    stored = None
    if tensors.source is None:
        read()
    else:
        stored = tensors.source.stored(name)
        require_weights(name, stored, shape)
        stored = replace(stored, shape=(shape[0] * outputs, inputs))
    part = MatrixPart(name, shape[0] * outputs, read, stored)
    return LinearWeights(FileMatrix((part,), inputs, tensors.dtype), stored_bits=tensors.stored_bits(name))
