"""Multi-token modules of a checkpoint: layers that came with the model and guess further tokens.

Module k reads, for each token, that token and what the module before it (for the first: the model itself) made of the
token before; it says the token k places on (DeepSeek-V3, arXiv:2412.19437, section 2.2). Embedding and output head are
the model's, unless a file has others for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.models.assembly import Assembly
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.families import holds_modules_alone, tensor_layout
from headstart.models.families.base import CheckpointKind, TensorLayout
from headstart.models.families.module_layouts import MultiTokenLayout, layouts_of_modules
from headstart.models.layout_tensors import Fetch, Shape, noting, reading
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import Matrix
from headstart.models.weight_loading import check_names
from headstart.models.weights import DecoderWeights, FusionWeights, HyperWeights, LayerWeights

if TYPE_CHECKING:
    from headstart.models.checkpoint import Checkpoint

_OF_CHANNEL = (
    *("mlp_norm", "gate", "up", "down", "router", "router_correction"),
    *(f"{of}_{part}" for of in ("expert", "shared") for part in ("gate", "up", "down")),
)
"""Roles of a layer's channel part."""
_COMPARED = 1 << 16
"""Bytes of output heads."""


@dataclass(frozen=True)
class MultiTokenModule:
    """One module."""

    embedding_norm: NormWeights
    hidden_norm: NormWeights
    final_norm: NormWeights
    """After it the output head says the token; the next module reads the state after it or, where the modules have it
    so, before it."""
    projection: LinearWeights
    """[hidden, 2 * hidden]: the normed token and the normed state side by side, in the order of ``hidden_first``."""
    layer: LayerWeights
    hyper_end: HyperWeights | None = None
    """Where modules have several residual streams: how they become the state that the last norm reads."""


@dataclass(frozen=True)
class MultiTokenModules:
    """All modules of a checkpoint, in order."""

    config: ModelConfig
    """The model's, with the layers of the modules in place of its own."""
    modules: tuple[MultiTokenModule, ...]
    hidden_first: bool = False
    """The projection reads the state, then the token; else the token, then the state."""
    embedding: Matrix | None = None
    """[vocab, hidden] of their own; None: the model's."""
    heads: tuple[Matrix, ...] = ()
    """Output heads of their own: none, one for all, or each module's."""
    feeds_unnormed: bool = False
    """A module reads states before the last norm, the model's and other modules'; else after it."""

    @property
    def state_size(self) -> int:
        """Of what a module feeds."""
        return self.config.hidden_size * (self.streams or 1)

    @property
    def streams(self) -> int | None:
        """A module reads as many residual streams, the model's or another module's, each behind its norm and its
        projection with the token, and feeds its own side by side; None: states."""
        return None if self.config.residual.hyper is None else self.config.residual.hyper.count

    def head_of(self, module: int) -> Matrix | None:
        """[vocab, hidden] that says what a module guesses; None: the model's."""
        return self.heads[min(module, len(self.heads) - 1)] if self.heads else None

    def config_of(self, module: int) -> ModelConfig:
        """Of one module as a decoder of one layer."""
        return replace(self.config, layers=self.config.layers[module : module + 1])

    def decoder(self, module: int, embedding: Tensor | Matrix, head: Tensor | Matrix) -> DecoderWeights:
        """One module as a decoder of one layer, with these tables [vocab, hidden]."""
        own = self.modules[module]
        return DecoderWeights(
            layers=(own.layer,),
            final_norm=own.final_norm,
            head=LinearWeights(head),
            embedding=embedding,
            hyper_end=own.hyper_end,
            fusion=FusionWeights(own.projection, own.embedding_norm, own.hidden_norm, self.hidden_first),
        )


def load_multi_token(checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype) -> MultiTokenModules | None:
    """The modules of an open checkpoint, whose matrices stay in the file; None: it holds none that are known.

    Args:
        config: the model's.
        dtype: of matrices.

    Raises:
        CheckpointError: tensors of them are missing or mis-shaped.
    """
    shapes = checkpoint.shapes()
    layouts = layouts_of_modules(config, checkpoint.kind, shapes)
    if holds_modules_alone(shapes):
        # SGLang's export counts them from 0 on.
        layouts += tuple(replace(names, follows=False) for names in layouts if names.follows)
    found = ((names, _numbers(names, config, shapes)) for names in layouts)
    names, numbers = next((each for each in found if each[1]), (None, []))
    if names is None:
        return None
    decoders = tensor_layout(config, checkpoint.kind).found_in(shapes)
    names = names.spelt_in(shapes, numbers[0])
    layout = layout_of_modules(decoders, checkpoint.kind, names)
    final_norm = names.final_norm
    if names.may_share_norm and f"{final_norm.format(i=numbers[0])}.weight" not in shapes:
        final_norm = decoders.prefix + decoders.final_norm
    layers = tuple(
        _as_found(names.like(config, module), layout, number, shapes) for module, number in enumerate(numbers)
    )
    hyper = config.residual.hyper if names.streams else None
    config = replace(config, layers=layers, residual=replace(config.residual, hyper=hyper))
    projections = [names.projection, names.of_states] if names.of_states else [names.projection]
    projection = (config.hidden_size, 2 // len(projections) * config.hidden_size)
    expected: dict[str, Shape] = {}

    def modules(fetch: Fetch, source: Checkpoint | None) -> tuple[MultiTokenModule, ...]:
        assembly = Assembly(config, layout, "", dtype, fetch, source, embedding="")
        return tuple(
            MultiTokenModule(
                embedding_norm=assembly.stream_norm(names.embedding_norm.format(i=number)),
                hidden_norm=assembly.stream_norm(names.hidden_norm.format(i=number)),
                final_norm=assembly.stream_norm(final_norm.format(i=number), "final_norm"),
                projection=assembly.beside([each.format(i=number) for each in projections], projection),
                layer=assembly.layer(number, layer),
                hyper_end=None if hyper is None else assembly.hyper(number, "end", (hyper.count,)),
            )
            for number, layer in zip(numbers, layers, strict=True)
        )

    modules(noting(expected), None)
    check_names(config, shapes, expected, [])

    def tables(name: str, of: Sequence[int]) -> tuple[Matrix, ...]:
        assembly = Assembly(config, layout, "", dtype, reading(checkpoint), checkpoint, embedding="")
        wholes = [name.format(i=number) for number in of if name]
        return tuple(assembly.table(whole) for whole in wholes if f"{whole}.weight" in shapes)

    return MultiTokenModules(
        config,
        modules(reading(checkpoint), checkpoint),
        names.hidden_first,
        next(iter(tables(names.embedding, numbers[:1])), None),
        tables(names.head, _saying(names, numbers, checkpoint)),
        names.feeds_unnormed,
    )


def _numbers(names: MultiTokenLayout, config: ModelConfig, shapes: Mapping[str, Shape]) -> list[int]:
    """Of the modules' layers in a file."""
    numbers = []
    for module in range(names.most):
        number = names.number(module, config)
        if not any(name.startswith(f"{names.layer.format(i=number)}.") for name in shapes):
            break
        numbers.append(number)
    return numbers


def _saying(names: MultiTokenLayout, numbers: list[int], checkpoint: Checkpoint) -> list[int]:
    """Modules whose output heads say the guesses: all, or the first where the others have the same or none."""
    heads = [name for number in numbers if (name := f"{names.head.format(i=number)}.weight") in checkpoint.shapes()]
    unlike = len({checkpoint.stored(name).data[:_COMPARED].tobytes() for name in heads}) > 1
    return numbers if unlike and len(heads) == len(numbers) else numbers[:1]


def _as_found(layer: LayerConfig, layout: TensorLayout, number: int, shapes: Mapping[str, Shape]) -> LayerConfig:
    """A module's layer with the channel part that the file has, an MLP among experts, say, or the other way round; and
    with its indexer, if there is one. Those of pooled keys are left out: guesses need no exact sight."""
    if "index_q" in layout.layer:
        lacks = f"{layout.layer['index_q'].format(i=number)}.weight" not in shapes
        layer = replace(layer, shares_choice=lacks or "index_gate" in layout.layer)
    if layer.channel not in ("mlp", "experts"):
        return layer
    held = {
        channel: f"{layout.layer[role].format(i=number)}.weight" in shapes
        for channel, role in (("mlp", "up"), ("experts", "router"))
        if role in layout.layer
    }
    if held.get("mlp") and not held.get("experts"):
        return replace(layer, channel="mlp")
    return replace(layer, channel="experts") if held.get("experts") and not held.get("mlp") else layer


def layout_of_modules(layout: TensorLayout, kind: CheckpointKind, names: MultiTokenLayout) -> TensorLayout:
    """The names of a family's layers, ``layout``, moved to where its modules' layers are."""
    before = "blk.{i}" if kind == "gguf" else "layers.{i}"
    own = {
        role: name.replace(before, names.channel if names.channel and role in _OF_CHANNEL else names.layer)
        for role, name in layout.layer.items()
    }
    return replace(layout, prefix="", layer=own | dict(names.own))
