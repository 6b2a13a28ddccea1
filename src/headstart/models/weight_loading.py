"""From the named tensors of a checkpoint to a decoder's canonical weights, strictly.

Names and shapes are settled from the headers alone: a missing, surplus or mis-shaped tensor is refused before
anything is read. Matrices stay in the file until somebody asks for one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from headstart.errors import CheckpointError
from headstart.models.assembly import Assembly
from headstart.models.config import ModelConfig
from headstart.models.families import (
    config_from_gguf,
    config_from_hf,
    encoder_decoder_layout,
    holds_modules_alone,
    tensor_layout,
)
from headstart.models.families.base import CheckpointKind, TensorLayout
from headstart.models.layout_tensors import Shape, noting, reading, require_weights
from headstart.models.stored import FileMatrix
from headstart.models.weights import DecoderWeights, TensorSource

if TYPE_CHECKING:
    from headstart.models.checkpoint import Checkpoint


_INFINITE = 1e29
_MODULES = r"(model\.)?mtp(_\w+)?\..*"
"""Multi-token modules that are none of the layers (``families.module_layouts``)."""
_BESIDE_LAYERS, _PROJECTION = ".nextn.", ".eh_proj."
"""In names of those that are layers beyond the decoder's."""
_GGUF_TOWERS = (r"(v|a|mm|resampler)\..*", r"model\.(image_newline|view_seperator)")
"""What reads images and sounds, which Ollama's files hold beside the text model."""


def load_decoder(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[ModelConfig, DecoderWeights]:
    """Description and weights of an open checkpoint.

    Raises:
        CheckpointError: unknown architecture or unsupported feature; missing, surplus or mis-shaped tensors.
    """
    config = config_of(checkpoint)
    weights = load_weights(checkpoint, config, checkpoint.kind, dtype)
    return config, weights.identified(checkpoint.identity())


def load_tables(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[FileMatrix, FileMatrix]:
    """The embedding and the head of an open checkpoint, the same where it is tied, without its layers.

    Raises:
        CheckpointError: as ``load_decoder``.
    """
    assembly, _ = _checked(checkpoint, config_of(checkpoint), checkpoint.kind, dtype)
    return assembly.tables()


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """Description of an open checkpoint; nothing of its weights is read, but for a table of rotary factors.

    Raises:
        CheckpointError: unknown architecture or unsupported feature, or that table is missing.
    """
    if checkpoint.kind == "hf":
        config = config_from_hf(checkpoint.metadata, checkpoint.name)
        tied = config.head.tied and not _has_own_head(checkpoint, config)
        return replace(config, head=replace(config.head, tied=tied))
    config = config_from_gguf(checkpoint.metadata, checkpoint.shapes(), checkpoint.name)
    return config if config.encoder is not None else with_factors(checkpoint, config, "gguf")


def with_factors(source: TensorSource, config: ModelConfig, kind: CheckpointKind) -> ModelConfig:
    """The description with the factors of the one rotation that has some, where a file keeps them as a tensor.

    Raises:
        CheckpointError: it is missing or mis-shaped.
    """
    layout = tensor_layout(config, kind)
    if layout.factored_rope is None:
        return config
    ropes, name = list(config.ropes), layout.rope_factors
    rope = ropes[layout.factored_rope]
    shapes, wanted = source.shapes(), (rope.dim // 2,)
    if layout.spare_factors:
        found = shapes.get(name)
        if found is None:
            return config
        wanted = found if len(found) == 1 and found[0] > wanted[0] else wanted
    check_names(config, shapes, {name: wanted}, [])
    require_weights(name, source.stored(name), wanted)
    # What does not turn has a factor that is all but infinite.
    read = source.read(name).double().tolist()[: rope.dim // 2]
    factors = (factor if factor < _INFINITE else math.inf for factor in read)
    ropes[layout.factored_rope] = replace(rope, factors=tuple(factors))
    return replace(config, ropes=tuple(ropes))


def _has_own_head(checkpoint: Checkpoint, config: ModelConfig) -> bool:
    """Whether the file holds an output head that is not the embedding. As in transformers, it is then the head,
    whatever the configuration says of ties."""
    shapes = checkpoint.shapes()
    if config.encoder is not None:
        names = encoder_decoder_layout(config, "hf")
        head = f"{names.head}.weight"
        tables = [f"{name}.weight" for each in names.embeddings for name in (each, each.removeprefix("model."))]
    else:
        layout = tensor_layout(config, "hf").found_in(shapes)
        head, tables = f"{layout.head}.weight", [f"{before}{layout.embedding}.weight" for before in (layout.prefix, "")]
    stored = [name for name in tables if name in shapes]
    if head not in shapes or not stored:
        return False
    if shapes[head] != shapes[stored[0]]:
        return True
    return not torch.equal(checkpoint.read(head), checkpoint.read(stored[0]))


def load_weights(source: TensorSource, config: ModelConfig, kind: CheckpointKind, dtype: torch.dtype) -> DecoderWeights:
    """Read a decoder's norms and biases, in float32, and say where its matrices are, which give ``dtype``.

    Where the head is tied, ``head.weight`` is ``embedding`` itself.

    Raises:
        CheckpointError: missing, surplus or mis-shaped tensors (all named, before any is read), or a tensor that
            does not hold floating-point numbers.
    """
    assembly, has_factors = _checked(source, config, kind, dtype)
    return assembly.decoder(has_factors)


def _checked(
    source: TensorSource, config: ModelConfig, kind: CheckpointKind, dtype: torch.dtype
) -> tuple[Assembly, bool]:
    """What reads a decoder whose tensors are all there, and whether it has factors of its rotary frequencies."""
    if config.encoder is not None:
        raise CheckpointError(
            f"model {config.name!r} has an encoder, which cannot be used here; name a model without one."
        )
    shapes = source.shapes()
    if holds_modules_alone(shapes):
        raise CheckpointError(
            f"model {config.name!r} holds multi-token modules alone; name the file of the model itself, and this one as"
            " the draft model of mtp."
        )
    layout = tensor_layout(config, kind).found_in(shapes)
    beyond = layout.beyond or any(_BESIDE_LAYERS in name or _PROJECTION in name for name in shapes)
    bare = f"{layout.embedding}.weight"
    prefix = "" if layout.prefix + bare not in shapes and bare in shapes else layout.prefix
    of_one = layout.factored_rope is not None
    has_factors = bool(layout.rope_factors) and layout.rope_factors in shapes and not of_one
    expected: dict[str, Shape] = {}

    embedding = f"{prefix}{layout.embedding}"
    if config.head.tied and f"{embedding}.weight" not in shapes and f"{layout.head}.weight" in shapes:
        embedding = layout.head  # what is tied may be stored under either name
    Assembly(config, layout, prefix, dtype, noting(expected), None, embedding).decoder(has_factors)
    left_out = (*layout.ignored, *_unread(config, layout), *(_GGUF_TOWERS if kind == "gguf" else (_MODULES,)))
    carries_nothing = re.compile("|".join(left_out) or r"(?!)")

    def is_surplus(name: str) -> bool:
        # Files may hold a copy of a tied head.
        known = name in expected or name == f"{layout.head}.weight" or (of_one and name == layout.rope_factors)
        bare = name.removeprefix(prefix)
        known = known or bool(carries_nothing.fullmatch(bare)) or (beyond and _is_beyond(bare, config))
        return not (known or _adds_nothing(source, name, expected))

    check_names(config, shapes, expected, [name for name in shapes if is_surplus(name)])
    return Assembly(config, layout, prefix, dtype, reading(source), source, embedding), has_factors


def _adds_nothing(source: TensorSource, name: str, expected: Mapping[str, Shape]) -> bool:
    """Whether it is a bias of zeros of a quantised matrix: AutoGPTQ gives one to each."""
    matrix = f"{name.removesuffix('.bias')}.weight"
    if not name.endswith(".bias") or matrix not in expected or matrix not in source.shapes():
        return False
    return source.stored(matrix).in_blocks and not source.read(name).any()


def _unread(config: ModelConfig, layout: TensorLayout) -> Iterator[str]:
    """Patterns of what released files hold of keys and values in layers that read another one's."""
    for index, layer in enumerate(config.layers):
        if layer.reads is not None:
            for role in ("k", "v", "k_norm"):
                yield re.escape(layout.layer[role].format(i=index)) + r"\.(weight|bias)"


def _is_beyond(name: str, config: ModelConfig) -> bool:
    """Whether a tensor is of a layer after the decoder's last."""
    layer = re.match(r"(?:layers|blk)\.(\d{1,9})\.", name)
    return layer is not None and int(layer[1]) >= config.num_layers


def check_names(
    config: ModelConfig, shapes: Mapping[str, Shape], expected: Mapping[str, Shape], surplus: list[str]
) -> None:
    faults = []
    missing = [f"{name} {list(shape)}" for name, shape in expected.items() if name not in shapes]
    if missing:
        faults.append(f"lacks {_listed(missing)}")
    if surplus:
        faults.append(f"has surplus {_listed([f'{name} {list(shapes[name])}' for name in surplus])}")
    wrong = [
        f"{name} {list(shapes[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    if wrong:
        faults.append(f"has mis-shaped {_listed(wrong)}")
    if faults:
        model = f"model {config.name!r}" if config.name else "the checkpoint"
        raise CheckpointError(
            f"{model} does not hold what its configuration promises of a {config.family} decoder: "
            f"it {' and '.join(faults)}; fetch or convert the model again."
        )


def _listed(items: list[str], most: int = 4) -> str:
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown
