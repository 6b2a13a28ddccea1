"""Tensors and what describes them, written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.drafting.heads.files import CONFIG_FILE
from headstart.models.locating import SINGLE_FILE


def write_head(
    directory: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """``config.json`` and ``model.safetensors``; files of these names are replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(directory / SINGLE_FILE, contiguous, metadata)
    write_description(directory, description)


def write_description(directory: Path, description: Mapping[str, Any]) -> None:
    """Write a head's ``config.json``."""
    (directory / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with the usual permissions (the library alone makes it readable by its owner only)."""
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={"format": "pt", **(metadata or {})})
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
