"""LoRA adapters that stay apart from their model, so that sequences of one pass may have different ones: folders as
peft saves them, and files of llama.cpp's ``convert_lora_to_gguf.py``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.assembly import Assembly
from headstart.models.checkpoint import Checkpoint
from headstart.models.families import tensor_layout
from headstart.models.files import local_path
from headstart.models.gguf_file import GgufFile
from headstart.models.layout_tensors import Shape
from headstart.models.linear_weights import LinearWeights
from headstart.models.lora import LowRank, foreign, low_rank, misfit, read_folder, require_room_for
from headstart.models.weight_loading import config_of
from headstart.models.weights import (
    AttentionWeights,
    ExpertsWeights,
    LayerWeights,
    MlpAndExpertsWeights,
    TwoMixersWeights,
)


class AdapterWeights(NamedTuple):
    """An adapter, as backends read it: W x becomes W x + up (down x), in float32, whatever W x is computed in."""

    changes: Mapping[tuple[int, int], tuple[Tensor, Tensor]]
    """``down`` [rank, in] and ``up`` [out, rank], which has the scale in it, by layer and number among ``adaptable``.
    Ranks of a matrix's parts (queries, keys, values; gates, ups) stand one behind the other."""
    digest: str
    """The same for equal changes alone."""


def adaptable(layer: LayerWeights) -> tuple[LinearWeights | None, ...]:
    """A layer's matrices that can be changed: into its mixer, out of it, up and down of its dense channel part or
    shared expert, and the gate of its attention; None: it has no such one."""
    mixer = layer.mixer.attention if isinstance(layer.mixer, TwoMixersWeights) else layer.mixer
    dense = layer.channel.mlp if isinstance(layer.channel, MlpAndExpertsWeights) else layer.channel
    dense = dense.shared if isinstance(dense, ExpertsWeights) else dense
    mixing = (None, None) if mixer is None else (next(iter(mixer.linears)), mixer.output)
    gate = layer.mixer.gate if isinstance(layer.mixer, AttentionWeights) else None
    return (*mixing, *((None, None) if dense is None else (dense.up, dense.down)), gate)


def load_adapter(path: str | Path, checkpoint: Checkpoint) -> AdapterWeights:
    """The adapter in a folder or a ``.gguf`` file, for the model of ``checkpoint``, which has no encoder.

    Raises:
        CheckpointError: there is none, it is damaged or not this model's, or it changes what can only be merged.
        NoRoomError: memory is short.
    """
    if "\0" in str(path):
        raise CheckpointError(f"{str(path)!r:.80} is no path.")
    source, config = local_path(path), config_of(checkpoint)
    pairs = _of_folder(source) if source.is_dir() else _of_file(source, checkpoint)
    try:
        layout = tensor_layout(config, "hf" if source.is_dir() else "gguf")
    except AssertionError:
        raise CheckpointError(f"{source} is no folder, as adapters of {config.family} models are.") from None
    alike = source.is_dir() is (checkpoint.kind == "hf")
    layout = layout.found_in(checkpoint.shapes() if alike else {f"{module}.weight": () for module in pairs})
    met, laid = set[str](), set[str]()

    def module_of(tensor: str) -> str:
        module = tensor.removesuffix(".weight")
        return module if module in pairs else module.removeprefix(layout.prefix)

    def fetch(name: str, shape: Shape, index: int | None = None) -> Tensor:
        """In place of a matrix, what the adapter changes it by: B in its first columns."""
        module = module_of(name)
        if module not in pairs:
            return torch.empty(shape if index is None else shape[1:], device="meta")
        met.add(module)
        pair = pairs[module]
        made = (pair.up.shape[0], pair.down.shape[1])[:: -1 if pair.turned else 1]
        if made != shape:
            raise misfit(source, module, made, shape)
        changed = torch.zeros(made[:: -1 if pair.turned else 1])
        if len(pair.down) > changed.shape[1]:
            raise CheckpointError(
                f"{source}: rank {len(pair.down)} of {module!r:.80} is more than its inputs; merge it."
            )
        changed[:, : len(pair.down)] = pair.up * pair.scale
        return changed.T if pair.turned else changed

    # The assembly puts rows in order, as it does those of the model's own matrices.
    embedding = f"{layout.prefix}{layout.embedding}"
    decoder = Assembly(config, layout, layout.prefix, torch.float32, fetch, None, embedding).decoder(False)
    changes, digest = {}, hashlib.sha256()
    for index, layer in enumerate(decoder.layers):
        places = adaptable(layer)
        for linear in sorted(layer.linears, key=lambda each: not any(each is place for place in places)):
            parts = () if isinstance(linear.matrix, Tensor) else linear.matrix.parts
            modules = [module_of(part.name) for part in parts]
            place = next((place for place, each in enumerate(places) if each is linear), None)
            if place is None:
                laid.difference_update(modules)
            elif downs := [pairs[module].down for module in modules if module in pairs]:
                ups = [
                    part.read()[:, : len(pairs[module].down)] if module in pairs else torch.zeros(part.rows, 0)
                    for part, module in zip(parts, modules, strict=True)
                ]
                changes[index, place] = torch.cat(downs), torch.block_diag(*ups)  # type: ignore[no-untyped-call]
                laid.update(modules)
                for tensor in changes[index, place]:
                    digest.update(f"{index} {place} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    for module in pairs:
        if module not in met:
            raise foreign(source, module)
        if module not in laid:
            raise _only_merged(source, module)
    if not changes:
        raise CheckpointError(f"{source} holds no LoRA matrices; fetch the adapter again.")
    return AdapterWeights(changes, digest.hexdigest())


def _of_folder(directory: Path) -> Mapping[str, LowRank]:
    _, pairs, others, _ = read_folder(directory)
    for module in others:
        raise _only_merged(directory, module)
    return pairs


def _of_file(path: Path, checkpoint: Checkpoint) -> Mapping[str, LowRank]:
    require_room_for(path)
    file = GgufFile(path)
    if file.metadata.get("general.type") != "adapter" or file.metadata.get("adapter.type") != "lora":
        raise CheckpointError(f"{path} is no LoRA adapter; name a folder of peft's, or a file of convert_lora_to_gguf.")
    own, others = (each.get("general.architecture") for each in (checkpoint.metadata, file.metadata))
    if checkpoint.kind == "gguf" and own != others:
        raise CheckpointError(
            f"{path} adapts {others!r:.40}, but this model is {own!r:.40}; give one of this very model."
        )
    alpha, sides = file.metadata.get("adapter.lora.alpha"), dict[str, dict[str, Tensor]]()
    for name in file.shapes():
        module, _, side = name.rpartition(".weight.lora_")
        sides.setdefault(module, {})[side.upper()] = file.read(name)
    # As in llama.cpp, without alpha the scale is 1.
    alpha = alpha if isinstance(alpha, int | float) else 0.0
    scale = (lambda rank: alpha / rank) if alpha else (lambda rank: 1.0)
    return {module: low_rank(path, module, both, scale) for module, both in sides.items()}


def _only_merged(path: Path, module: str) -> CheckpointError:
    return CheckpointError(
        f"{path} changes {module!r:.100}, which requests cannot have of their own; merge the adapter into the model "
        "(--lora DIR, without a name)."
    )
