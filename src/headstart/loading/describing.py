"""Whose code computes a model: Headstart's own where it has a description of it, else transformers'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from headstart.common.enumerations import BackendChoice, Precision
from headstart.common.installed import installed_points
from headstart.errors import ConfigError, UnsupportedModelError
from headstart.loading.reading import USUAL, Reading
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import config_of
from headstart.passes.backend import Backend

GROUP = "headstart.backends"
"""Entry points of this group are ``ForeignCode``, named like a ``BackendChoice``."""


class ForeignModel(Protocol):
    """A model that another library's code computes; nothing of its weights is read."""

    @property
    def config(self) -> ModelConfig:
        """Its sizes."""
        ...

    def load(self, precision: Precision, device: torch.device) -> tuple[Backend, str]:
        """What runs its passes, and in which manner, in words.

        Raises:
            CheckpointError: the weights are damaged, or not to be decoded with.
            ConfigError: the precision cannot be had so, or memory is short.
        """
        ...


class ForeignCode(Protocol):
    """Another library, whose code computes models that Headstart has no description of."""

    def missing(self) -> str | None:
        """Why it cannot be used here, and what to do; None: it can."""
        ...

    def opened(self, checkpoint: Checkpoint, reading: Reading) -> ForeignModel:
        """A model of a directory.

        Raises:
            CheckpointError: the library does not know it either, or it brings code of its own that nobody trusts.
        """
        ...


@dataclass(frozen=True)
class Described:
    """A model's sizes, and whose code computes it."""

    config: ModelConfig
    foreign: ForeignModel | None = None
    """None: Headstart's own code."""
    why: str = ""
    """Why another library's code does."""


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
        code = _transformers_code()
        if (reason := code.missing()) is not None:
            raise ConfigError(f"backend is 'transformers', but {reason}.")
        return _described(code.opened(checkpoint, reading), "it was asked for")
    try:
        return Described(config_of(checkpoint))
    except UnsupportedModelError as refusal:
        if choice is BackendChoice.HEADSTART or checkpoint.kind != "hf":
            raise
        code = _transformers_code()
        if (reason := code.missing()) is not None:
            sentence = str(refusal).removesuffix(".")
            raise UnsupportedModelError(f"{sentence}; to have it run by transformers' own code, {reason}.") from refusal
        return _described(code.opened(checkpoint, reading), "Headstart has no description of it")


def _described(model: ForeignModel, why: str) -> Described:
    return Described(model.config, model, why)


def _transformers_code() -> ForeignCode:
    for point in installed_points(GROUP):
        if point.name == BackendChoice.TRANSFORMERS:
            code: ForeignCode = point.load()
            return code
    raise ConfigError(f"no installed package has an entry point for transformers in {GROUP}; install headstart again.")
