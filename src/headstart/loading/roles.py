"""What a file is that is no language model: told by name where it was given as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.drafting.head_files.loading import is_modules_alone, kind_in
from headstart.errors import CheckpointError, ConfigError
from headstart.models.checkpoint import Checkpoint
from headstart.models.gguf_file import GgufFile
from headstart.models.locating import locate
from headstart.text.tokenizer import Tokenizer

_PROJECTORS = ("clip", "mmproj")
_EMBEDDING_FILES = ("modules.json", "config_sentence_transformers.json")
"""Of sentence-transformers' models."""
_HEADS = ("eagle", "dflash", "dspark", "assistant", "mtp")
"""Parts of the architectures that llama.cpp writes into files of drafters that read a target's states."""
SIDECARS = (*_HEADS, "draft", "spec")
"""Parts of the names of such files: llama.cpp's, LM Studio's and their publishers'."""
_ENCODERS = ("bert", "t5encoder")
MODULES = "a file of multi-token modules alone"
"""The role of such a file or folder."""


def role_of(path: Path) -> str | None:
    """What lies at a path, if it is no language model, as the end of "it is"; None: it may be one.

    Raises:
        CheckpointError: it is damaged.
    """
    if is_modules_alone(str(path)):
        return MODULES
    if not path.is_dir():
        return _role_in(GgufFile(path).metadata)
    kind = kind_in(path)
    if kind is not None:
        return f"a draft head ({kind})"
    return "an embedding model" if any((path / name).exists() for name in _EMBEDDING_FILES) else None


def _role_in(metadata: Mapping[str, Any]) -> str | None:
    architecture = str(metadata.get("general.architecture"))
    if architecture in _PROJECTORS or metadata.get("general.type") in _PROJECTORS:
        return "a projector of images or sound (mmproj)"
    if any(part in architecture for part in _HEADS):
        return f"a draft head ({architecture})"
    if any(part in architecture for part in _ENCODERS) or metadata.get(f"{architecture}.pooling_type", 0):
        return "an embedding model"
    return None


def require_language_model(name: str) -> None:
    """Refuse as a draft model what is none.

    Raises:
        ConfigError: naming what it is.
        CheckpointError: there is nothing of this name, or it is damaged.
    """
    try:
        role = role_of(locate(name))
    except CheckpointError:
        return  # whoever loads it says what is wrong
    if role is not None:
        runs = role == MODULES or "head" in role
        mend = "name it without a drafter, or with the one that runs it" if runs else "name a model"
        raise ConfigError(f"{name} is {role}, no model that guesses by itself; {mend}.")


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """A target's.

    Raises:
        CheckpointError: it has none, or a damaged one; or is no model at all, and what it is.
    """
    try:
        return Tokenizer.from_checkpoint(checkpoint)
    except CheckpointError:
        if (role := role_of(checkpoint.path)) is None:
            raise
        given = "give it with --draft-model, and with --model the one that it guesses for"
        raise CheckpointError(f"{checkpoint.name} is {role}, no model that answers; {given}.") from None
