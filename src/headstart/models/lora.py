"""LoRA adapters as the package peft saves them, merged into their model's matrices as these are read.

A matrix W [out, in] becomes W + s B A with A [rank, in], B [out, rank] (Hu et al., 2021, https://arxiv.org/abs/2106.09685),
s = alpha / rank, or alpha / sqrt(rank) with rank stabilisation (Kalajdzievski, 2023, https://arxiv.org/abs/2312.03732).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.derived import Derived, DerivedTensors, OpenWeights
from headstart.models.files import FileStamp, read_json, require_file
from headstart.models.pickled_files import read_pickled
from headstart.models.stored import digest_of, stored_tensor

CONFIG_FILE = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_PARTS = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<side>[AB])(\.default)?(\.weight)?")
_WHOLE = re.compile(r"(?P<name>.+?)(\.modules_to_save(\.default)?|\.base_layer)?\.(?P<leaf>weight|bias)")
"""A tensor that takes the place of the model's; peft saves tables that it adapts so."""
_UNSERVED = {"use_dora": "DoRA", "lora_bias": "biases of LoRA matrices", "use_qalora": "QALoRA"}


@dataclass(frozen=True)
class _Settings:
    """What an adapter's configuration says of its scales."""

    alpha: float
    alphas: Mapping[str, float]
    stabilised: bool
    transposed: bool
    """Its model's matrices are [in, out]."""

    def scale(self, module: str, rank: int) -> float:
        matching = [value for pattern, value in self.alphas.items() if re.fullmatch(rf"(.*\.)?({pattern})", module)]
        alpha = matching[0] if matching else self.alpha
        return alpha / (rank**0.5 if self.stabilised else rank)


def with_adapter(weights: OpenWeights, directory: Path) -> DerivedTensors:
    """A model's tensors with the adapter of a directory merged into them, in float32.

    Raises:
        CheckpointError: there is no adapter, it is of another kind or damaged, or it is not this model's.
    """
    settings = _settings(directory)
    path = next((directory / name for name in _WEIGHTS if (directory / name).exists()), None)
    if path is None:
        raise CheckpointError(f"{directory} has no {_WEIGHTS[0]}; fetch the adapter again.")
    require_file(path)
    tensors = _read(path)
    shapes = weights.shapes()
    pairs: dict[tuple[str, bool], dict[str, Tensor]] = {}
    whole_ones: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(_PREFIX)
        found = _PARTS.fullmatch(bare)
        if found is not None:
            pairs.setdefault((found["module"], bool(found["kind"])), {})[found["side"]] = tensor
            continue
        whole = _WHOLE.fullmatch(bare)
        target = "" if whole is None else f"{whole['name']}.{whole['leaf']}"
        if target not in shapes or shapes[target] != tuple(tensor.shape):
            raise _foreign(directory, name)
        whole_ones[target] = tensor
    derived = {name: Derived(shapes[name], "MERGED", 16.0, tensor.clone) for name, tensor in whole_ones.items()}
    for (module, embeds), sides in pairs.items():
        target = f"{module}.weight"
        if sides.keys() != {"A", "B"}:
            raise CheckpointError(f"{path} has one of the two matrices of {module!r:.80} only; fetch it again.")
        if target not in shapes:
            raise _foreign(directory, module)
        before = derived[target].read if target in derived else partial(weights.read, target)
        derived[target] = _merged(before, target, sides, settings, embeds, shapes[target], directory)
    if not derived:
        raise CheckpointError(f"{path} holds no LoRA matrices; fetch the adapter again.")
    identity = digest_of({name: stored_tensor(tensor) for name, tensor in tensors.items()})
    return DerivedTensors(weights, derived, also=f"{identity} {settings}", stamps=(FileStamp.of(path),))


def _merged(
    before: Callable[[], Tensor],
    target: str,
    sides: Mapping[str, Tensor],
    settings: _Settings,
    embeds: bool,
    shape: tuple[int, ...],
    directory: Path,
) -> Derived:
    first, second = sides["A"], sides["B"]
    if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
        raise CheckpointError(f"{directory}: the matrices for {target!r:.80} do not fit each other; fetch it again.")
    turned = embeds or settings.transposed
    made = (first.shape[1], second.shape[0]) if turned else (second.shape[0], first.shape[1])
    if made != shape:
        raise CheckpointError(
            f"{directory}: the matrices for {target!r:.80} make {list(made)}, but this model's is {list(shape)}; give "
            "the adapter of this very model."
        )
    scale = settings.scale(target.removesuffix(".weight"), first.shape[0])

    def read() -> Tensor:
        change = second.float() @ first.float()
        return torch.add(before().float(), change.T if turned else change, alpha=scale)

    return Derived(shape, "MERGED", 16.0, read)


def _settings(directory: Path) -> _Settings:
    path = directory / CONFIG_FILE
    if not path.exists():
        raise CheckpointError(f"{directory} has no {CONFIG_FILE}; name the folder of a LoRA adapter, as peft saves it.")
    config = read_json(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type is {kind!r:.40}; only LORA is merged here, so merge it with peft.")
    for key, what in _UNSERVED.items():
        if config.get(key):
            raise CheckpointError(f"{path} asks for {what} ({key}), which is not merged here; merge it with peft.")
    alphas = config.get("alpha_pattern") or {}
    numbers = [config.get("lora_alpha", 8), *(alphas.values() if isinstance(alphas, dict) else [None])]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        raise CheckpointError(f"{path}: lora_alpha and alpha_pattern must be numbers; fetch the adapter again.")
    for pattern in alphas:
        try:
            re.compile(pattern)
        except re.error as error:
            raise CheckpointError(f"{path}: alpha_pattern {pattern!r:.60} is no pattern; fetch it again.") from error
    return _Settings(
        float(config.get("lora_alpha", 8)),
        {name: float(value) for name, value in alphas.items()},
        bool(config.get("use_rslora")),
        bool(config.get("fan_in_fan_out")),
    )


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".bin":
        return read_pickled(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read: Callable[[Any], dict[str, Tensor]] = load_file
    try:
        return read(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({error}); fetch it again.") from error


def _foreign(directory: Path, name: str) -> CheckpointError:
    return CheckpointError(
        f"{directory} adapts {name!r:.100}, which this model does not have; give the adapter of this very model."
    )
