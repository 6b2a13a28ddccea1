"""Whose code computes a model: Headstart's own where it has a description of it, else transformers'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headstart.backends.transformers import description
from headstart.common.enumerations import BackendChoice
from headstart.errors import ConfigError, UnsupportedModelError
from headstart.loading.reading import USUAL, Reading
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import config_of


@dataclass(frozen=True)
class Described:
    """A model's sizes, and whose code computes it."""

    config: ModelConfig
    foreign: Any = None
    """transformers' configuration, where its code does; None: Headstart's own."""
    why: str = ""
    """Why transformers' code does."""


def describe(checkpoint: Checkpoint, reading: Reading = USUAL) -> Described:
    """What computes an open checkpoint; nothing of its weights is read.

    Raises:
        CheckpointError: unknown architecture, unsupported feature, or code of its own that nobody trusts.
        ConfigError: transformers is asked for where it cannot be had.
    """
    choice = reading.backend
    if choice is BackendChoice.TRANSFORMERS:
        if checkpoint.kind != "hf":
            raise ConfigError("backend is 'transformers', which runs no GGUF files; leave it out.")
        description.require_transformers()
        return _by_transformers(checkpoint, reading, "it was asked for")
    try:
        return Described(config_of(checkpoint))
    except UnsupportedModelError as refusal:
        if choice is BackendChoice.HEADSTART or checkpoint.kind != "hf":
            raise
        reason = description.missing()
        if reason is not None:
            sentence = str(refusal).removesuffix(".")
            raise UnsupportedModelError(f"{sentence}; to have it run by transformers' own code, {reason}.") from refusal
        return _by_transformers(checkpoint, reading, "Headstart has no description of it")


def _by_transformers(checkpoint: Checkpoint, reading: Reading, why: str) -> Described:
    foreign = description.read_config(checkpoint.metadata, checkpoint.path, checkpoint.name, reading.trust_remote_code)
    return Described(description.described(foreign, checkpoint.metadata, checkpoint.name), foreign, why)
