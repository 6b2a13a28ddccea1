"""Files beside a model that guess for it."""

from __future__ import annotations

import re
from pathlib import Path

from headstart.drafting.head_files.shipped import target_shape
from headstart.errors import HeadstartError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.families import holds_modules_alone
from headstart.models.weight_loading import config_of

_CALLED = re.compile(r"(^|[-_.])mtp[-_.]", re.IGNORECASE)


def modules_beside(path: Path, config: ModelConfig) -> Path | None:
    """The file of multi-token modules alone in the folder of a GGUF file, as llama.cpp's converter calls it
    (``mtp-*.gguf``), that is made for a model of this shape; None: there is none.

    Args:
        path: of the model's file.
        config: the model's.
    """
    for file in sorted(path.parent.glob("*.gguf")):
        if _CALLED.search(file.name) and file != path and _fits(file, config):
            return file
    return None


def _fits(file: Path, config: ModelConfig) -> bool:
    try:
        checkpoint = open_checkpoint(file)
        return holds_modules_alone(checkpoint.shapes()) and target_shape(config_of(checkpoint)) == target_shape(config)
    except HeadstartError:
        return False
