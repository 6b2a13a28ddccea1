"""Multi-token modules for a model: what lies beside it, and whether that is whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headstart.backends.native.packing import read_matrix, release
from headstart.drafting.head_files.loading import is_modules_alone
from headstart.drafting.heads.files import holds_numbers
from headstart.errors import CheckpointError, ConfigError, HeadstartError
from headstart.models.checkpoint import Checkpoint, open_modules
from headstart.models.config import ModelConfig
from headstart.models.families import holds_modules_alone
from headstart.models.multi_token_modules import MultiTokenModules, load_multi_token
from headstart.models.stored import FileMatrix
from headstart.models.weight_loading import config_of

_CALLED = re.compile(r"(^|[-_./])(mtp|nextn)([-_./]|$)", re.IGNORECASE)
_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


def are_called_so(path: Path) -> bool:
    """Whether a file is called like one of multi-token modules, by its own name or its folder's."""
    return _CALLED.search(str(path)) is not None


def modules_beside(
    path: Path,
    config: ModelConfig,
    refuse: Callable[[Path, str], None] = lambda file, reason: None,
    cached: Iterable[tuple[str, Path]] = (),
) -> Path | None:
    """The multi-token modules alone that lie beside a model's file or in its folder, else in the hub's cache, made for
    a model of this shape: a GGUF file (llama.cpp's converter writes ``mtp-*.gguf``), a safetensors file that no index
    lists, or a folder (as SGLang exports), called so or in a folder of that name; None: there are none.

    Args:
        path: of the model's file or folder.
        config: the model's.
        refuse: hears which file beside the model that is called so is not used, and why.
        cached: names and places in the hub's cache; those of other models are nobody's business.
    """
    folder = path if path.is_dir() else path.parent
    files = [*folder.glob("*.gguf"), *folder.glob("*/*.gguf"), *folder.glob("*.safetensors")]
    folders = (each.parent for each in folder.glob("*/config.json"))
    near = [(str(file.relative_to(folder)), file) for file in sorted((*files, *folders)) if file != path]
    far = [(name if file.is_dir() else file.name, file) for name, file in cached if file != path]
    for name, file in (*near, *far):
        if are_called_so(Path(name)):
            try:
                if is_modules_alone(str(file)):
                    config_for(open_modules(file), config)
                    return file
            except HeadstartError as error:
                if (name, file) in near:
                    refuse(file, str(error))
    return None


def config_for(checkpoint: Checkpoint, target: ModelConfig) -> ModelConfig:
    """Of the model that modules of an open checkpoint belong to. It may be of another family in a file of another kind,
    or inside one that sees.

    Raises:
        ConfigError: that is another model than the target.
        CheckpointError: its description is senseless.
    """
    own = config_of(checkpoint)
    if checkpoint.kind == "hf" and holds_modules_alone(checkpoint.shapes()) and own.num_layers != target.num_layers:
        own = replace(own, layers=target.layers)  # whose description counts none but the module's
    pairs = ((name, getattr(own, name), getattr(target, name)) for name in _SIZES)
    if differences := [f"{name} {theirs} (here {ours})" for name, theirs, ours in pairs if theirs != ours]:
        raise ConfigError(
            f"{checkpoint.name} is of another shape than the target: it has {' and '.join(differences)}; name a "
            "checkpoint of the same model."
        )
    return own


def sound_modules(checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype) -> MultiTokenModules | None:
    """As ``load_multi_token``, with weights that are numbers throughout.

    Raises:
        CheckpointError: tensors are missing or mis-shaped, or hold infinities or NaN.
    """
    found = load_multi_token(checkpoint, config, dtype)
    faults = sorted({name for name, tensor in _weights_in(found, "") if not holds_numbers(tensor)})
    if faults:
        raise CheckpointError(
            f"the multi-token modules of {checkpoint.name} hold infinities or NaN in {', '.join(faults[:3])}"
            f"{' and others' if len(faults) > 3 else ''}; fetch them again."
        )
    return found


def _weights_in(held: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, each matrix read when it is its turn."""
    if isinstance(held, Tensor):
        yield name, held
    elif isinstance(held, FileMatrix):
        yield held.parts[0].name, read_matrix(held, torch.float32)
        release(held)
    elif isinstance(held, tuple):
        for each in held:
            yield from _weights_in(each, name)
    elif is_dataclass(held) and not isinstance(held, ModelConfig):
        for key, each in vars(held).items():
            yield from _weights_in(each, key.removeprefix("_") if key != "_weight" else name)
