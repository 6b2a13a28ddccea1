"""LoRA adapters as the package peft saves them, read, and merged into their model's matrices as these are read.

A matrix W [out, in] becomes W + s B A with A [rank, in], B [out, rank] (Hu et al., 2021, https://arxiv.org/abs/2106.09685),
s = alpha / rank, or alpha / sqrt(rank) with rank stabilisation (Kalajdzievski, 2023, https://arxiv.org/abs/2312.03732).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import regex
import torch
from torch import Tensor

from headstart.common.memory import require_room
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
_PATTERN_SECONDS = 0.05
"""That a pattern of scales may take for one module."""
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
        """Raises TimeoutError where a pattern takes too long: adapters come from anywhere."""
        matching = (
            value
            for pattern, value in self.alphas.items()
            if regex.fullmatch(_whole(pattern), module, timeout=_PATTERN_SECONDS)
        )
        alpha = next(matching, self.alpha)
        return alpha / (rank**0.5 if self.stabilised else rank)


class LowRank(NamedTuple):
    """The two matrices for one of the model's."""

    down: Tensor
    """A, [rank, in]; of a table [rank, rows]."""
    up: Tensor
    """B, [out, rank]"""
    scale: float
    turned: bool = False
    """The model's matrix is [in, out], as a table is."""


def read_folder(directory: Path) -> tuple[Path, dict[str, LowRank], dict[str, Tensor], str]:
    """An adapter as peft saves it: its file, pairs of matrices by module, tensors that were saved whole or are unknown,
    and its identity.

    Raises:
        CheckpointError: there is none, or it is of another kind or damaged.
    """
    settings = _settings(directory)
    path = next((directory / name for name in _WEIGHTS if (directory / name).exists()), None)
    if path is None:
        raise CheckpointError(f"{directory} has no {_WEIGHTS[0]}; fetch the adapter again.")
    require_room_for(path)
    tensors, others = _read(path), dict[str, Tensor]()
    sides: dict[tuple[str, bool], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(_PREFIX)
        if (found := _PARTS.fullmatch(bare)) is None:
            others[bare] = tensor
        else:
            key = found["module"], settings.transposed or bool(found["kind"])
            sides.setdefault(key, {})[found["side"]] = tensor
    pairs = {
        module: low_rank(path, module, both, partial(settings.scale, module), turned)
        for (module, turned), both in sides.items()
    }
    identity = digest_of({name: stored_tensor(tensor) for name, tensor in tensors.items()})
    return path, pairs, others, f"{identity} {settings}"


def require_room_for(path: Path) -> None:
    """Refuse a file of tensors that memory does not hold, before any of it is read."""
    require_room(2 * require_file(path).st_size, f"the adapter {path}", "give a smaller one")


def low_rank(
    path: Path, module: str, sides: Mapping[str, Tensor], scale: Callable[[int], float], turned: bool = False
) -> LowRank:
    """Of the tensors "A" and "B"; ``scale``: of a rank.

    Raises:
        CheckpointError: one is missing, or they do not fit each other.
    """
    if sides.keys() != {"A", "B"}:
        raise CheckpointError(f"{path} has one of the two matrices of {module!r:.80} only; fetch it again.")
    down, up = sides["A"], sides["B"]
    if down.ndim != 2 or up.ndim != 2 or not 0 < down.shape[0] == up.shape[1]:
        raise CheckpointError(f"{path}: the matrices for {module!r:.80} do not fit each other; fetch it again.")
    if not (down.is_floating_point() and up.is_floating_point()):
        raise CheckpointError(f"{path}: the matrices for {module!r:.80} are {down.dtype}, {up.dtype}; give floats.")
    try:
        factor = scale(len(down))
    except TimeoutError:
        raise CheckpointError(f"{path}: alpha_pattern takes too long for {module!r:.80}; name the modules.") from None
    down, up = down.float(), up.float()
    if not (down.isfinite().all() and (up * factor).isfinite().all()):
        raise CheckpointError(f"{path}: the matrices for {module!r:.80} are not finite; fetch the adapter again.")
    return LowRank(down, up, factor, turned)


def with_adapter(weights: OpenWeights, directory: Path) -> DerivedTensors:
    """A model's tensors with the adapter of a directory merged into them, in float32.

    Raises:
        CheckpointError: there is no adapter, it is of another kind or damaged, or it is not this model's.
    """
    path, pairs, others, identity = read_folder(directory)
    shapes, derived = weights.shapes(), dict[str, Derived]()
    for name, tensor in others.items():
        whole = _WHOLE.fullmatch(name)
        target = "" if whole is None else f"{whole['name']}.{whole['leaf']}"
        if target not in shapes or shapes[target] != tuple(tensor.shape):
            raise foreign(directory, name)
        derived[target] = Derived(shapes[target], "MERGED", 16.0, tensor.clone)
    for module, pair in pairs.items():
        target = f"{module}.weight"
        if target not in shapes:
            raise foreign(directory, module)
        before = derived[target].read if target in derived else partial(weights.read, target)
        derived[target] = _merged(before, target, pair, shapes[target], directory)
    if not derived:
        raise CheckpointError(f"{path} holds no LoRA matrices; fetch the adapter again.")
    return DerivedTensors(weights, derived, also=identity, stamps=(FileStamp.of(path),))


def _merged(
    before: Callable[[], Tensor], target: str, pair: LowRank, shape: tuple[int, ...], directory: Path
) -> Derived:
    made = (pair.up.shape[0], pair.down.shape[1])[:: -1 if pair.turned else 1]
    if made != shape:
        raise misfit(directory, target, made, shape)

    def read() -> Tensor:
        change = pair.up @ pair.down
        return torch.add(before().float(), change.T if pair.turned else change, alpha=pair.scale)

    return Derived(shape, "MERGED", 16.0, read)


def _whole(pattern: str) -> str:
    """That a module's name ends so, as peft reads it."""
    return rf"(.*\.)?({pattern})"


def _settings(directory: Path) -> _Settings:
    path = directory / CONFIG_FILE
    if not path.exists():
        raise CheckpointError(f"{directory} has no {CONFIG_FILE}; name the folder of a LoRA adapter, as peft saves it.")
    config = read_json(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type is {kind!r:.40}; only LORA is read here, so merge it with peft.")
    for key, what in _UNSERVED.items():
        if config.get(key):
            raise CheckpointError(f"{path} asks for {what} ({key}), which is not read here; merge it with peft.")
    alphas = config.get("alpha_pattern") or {}
    numbers = [config.get("lora_alpha", 8), *(alphas.values() if isinstance(alphas, dict) else [None])]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e30 for each in numbers):
        raise CheckpointError(f"{path}: lora_alpha and alpha_pattern must be numbers; fetch the adapter again.")
    for key in ("use_rslora", "fan_in_fan_out"):
        if not isinstance(config.get(key) or False, bool):
            raise CheckpointError(f"{path}: {key} is {config[key]!r:.40}; it must be true or false.")
    for pattern in alphas:
        try:
            regex.compile(_whole(pattern))
        except regex.error as error:
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


def misfit(path: Path, name: str, made: Sequence[int], wanted: Sequence[int]) -> CheckpointError:
    """Of matrices whose product is of another shape than the model's."""
    return CheckpointError(
        f"{path}: the matrices for {name!r:.80} make {list(made)}, but this model's is {list(wanted)}; give the "
        "adapter of this very model."
    )


def foreign(directory: Path, name: str) -> CheckpointError:
    """Of what an adapter has for a module that the model lacks."""
    return CheckpointError(
        f"{directory} adapts {name!r:.100}, which this model does not have; give the adapter of this very model."
    )
