"""Files beside a model that guess for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from headstart.errors import HeadstartError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.families import holds_modules_alone
from headstart.models.weight_loading import config_of

_CALLED = re.compile(r"(^|[-_./])(mtp|nextn)[-_./]", re.IGNORECASE)
_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


def misfit(modules: ModelConfig, target: ModelConfig) -> str | None:
    """Why multi-token modules of one model cannot be another's, as the end of "it has"; None: they may be.

    The same model may be of another family in a file of another kind, or inside one that sees.
    """
    pairs = ((name, getattr(modules, name), getattr(target, name)) for name in _SIZES)
    differences = [f"{name} {theirs} (here {own})" for name, theirs, own in pairs if theirs != own]
    return " and ".join(differences) or None


def are_called_so(path: Path) -> bool:
    """Whether a file is called like one of multi-token modules, by its own name or its folder's."""
    return _CALLED.search(str(path)) is not None


def modules_beside(
    path: Path, config: ModelConfig, refuse: Callable[[Path, str], None] = lambda file, reason: None
) -> Path | None:
    """The GGUF file of multi-token modules alone that lies beside a model's file or in its folder, called as
    llama.cpp's converter calls it (``mtp-*.gguf``) or in a folder of that name, and made for a model of this shape;
    None: there is none.

    Args:
        path: of the model's file or folder.
        config: the model's.
        refuse: hears which file that is called so is not used, and why.
    """
    folder = path if path.is_dir() else path.parent
    for file in sorted((*folder.glob("*.gguf"), *folder.glob("*/*.gguf"))):
        if file != path and are_called_so(file.relative_to(folder)):
            reason = _why_not(file, config)
            if reason is None:
                return file
            if reason:
                refuse(file, reason)
    return None


def _why_not(file: Path, config: ModelConfig) -> str | None:
    """Why a file does not guess for a model of this shape; empty: it is no file of modules alone."""
    try:
        checkpoint = open_checkpoint(file)
        if not holds_modules_alone(checkpoint.shapes()):
            return ""
        difference = misfit(config_of(checkpoint), config)
    except HeadstartError as error:
        return str(error)
    return None if difference is None else f"they are another model's, which has {difference}."
