"""Multi-token modules of a checkpoint: layers that came with the model and guess further tokens.

Module k reads, for each token, that token and what the module before it (for the first: the model itself) made of the
token before; it says the token k places on (DeepSeek-V3, arXiv:2412.19437, section 2.2). Embedding and output head are
the model's: files that repeat them hold copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.models.assembly import Assembly
from headstart.models.config import ModelConfig
from headstart.models.families import tensor_layout
from headstart.models.families.base import CheckpointKind, TensorLayout
from headstart.models.families.multi_token import MultiTokenLayout, multi_token_layout
from headstart.models.layout_tensors import Fetch, Shape, require_weights
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.weight_loading import check_names
from headstart.models.weights import LayerWeights

if TYPE_CHECKING:
    from headstart.models.checkpoint import Checkpoint

MOST_MODULES = 16


@dataclass(frozen=True)
class MultiTokenModule:
    """One module."""

    embedding_norm: NormWeights
    hidden_norm: NormWeights
    final_norm: NormWeights
    """After it the output head says the token, and the next module reads the state."""
    projection: LinearWeights
    """[hidden, 2 * hidden]: the normed token and the normed state side by side, in the order of ``hidden_first``."""
    layer: LayerWeights


@dataclass(frozen=True)
class MultiTokenModules:
    """All modules of a checkpoint, in order."""

    config: ModelConfig
    """The model's, with the layers of the modules in place of its own."""
    modules: tuple[MultiTokenModule, ...]
    hidden_first: bool = False
    """The projection reads the state, then the token; else the token, then the state."""


def load_multi_token(checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype) -> MultiTokenModules | None:
    """The modules of an open checkpoint, whose matrices stay in the file; None: it holds none that are known.

    Args:
        config: the model's.
        dtype: of matrices.

    Raises:
        CheckpointError: tensors of them are missing or mis-shaped.
    """
    names = multi_token_layout(config, checkpoint.kind)
    if names is None:
        return None
    shapes = checkpoint.shapes()
    numbers = []
    for module in range(MOST_MODULES):
        number = names.number(module, config)
        if not any(name.startswith(f"{names.layer.format(i=number)}.") for name in shapes):
            break
        numbers.append(number)
    if not numbers:
        return None
    layout = layout_of_modules(config, checkpoint.kind, names)
    like = names.like(config)
    config = replace(config, layers=(like,) * len(numbers))
    projection = (config.hidden_size, 2 * config.hidden_size)
    expected: dict[str, Shape] = {}

    def note(name: str, shape: Shape, index: int | None = None) -> Tensor:
        expected[name] = shape
        return torch.empty(shape if index is None else shape[1:], device="meta")

    def read(name: str, shape: Shape, index: int | None = None) -> Tensor:
        require_weights(name, checkpoint.stored(name), shape)
        return checkpoint.read(name, index)

    def modules(fetch: Fetch, source: Checkpoint | None) -> tuple[MultiTokenModule, ...]:
        assembly = Assembly(config, layout, "", dtype, fetch, source, embedding="")
        return tuple(
            MultiTokenModule(
                embedding_norm=assembly.stream_norm(names.embedding_norm.format(i=number)),
                hidden_norm=assembly.stream_norm(names.hidden_norm.format(i=number)),
                final_norm=assembly.stream_norm(names.final_norm.format(i=number)),
                projection=assembly.matrix(names.projection.format(i=number), projection),
                layer=assembly.layer(number, like),
            )
            for number in numbers
        )

    modules(note, None)
    check_names(config, shapes, expected, [])
    return MultiTokenModules(config, modules(read, checkpoint), names.hidden_first)


def layout_of_modules(config: ModelConfig, kind: CheckpointKind, names: MultiTokenLayout) -> TensorLayout:
    """The names of a family's layers, moved to where its modules' layers are."""
    layout = tensor_layout(config, kind)
    own = {role: name.replace("layers.{i}", names.layer) for role, name in layout.layer.items()}
    return replace(layout, prefix="", layer=own)
