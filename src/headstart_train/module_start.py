"""What a multi-token module begins as: the target's own, one that was trained before, or a copy of the target's last
layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from headstart.drafting.head_files.shipped import target_shape
from headstart.errors import ConfigError
from headstart.loading.model import Model
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.families.module_layouts import multi_token_layout
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.multi_token_modules import MultiTokenModule, MultiTokenModules, load_multi_token
from headstart.models.weight_loading import config_of
from headstart.models.weights import DecoderWeights
from headstart_train.decoder.trainable_module import require_trainable_module
from headstart_train.files.models import check_modules_writable
from headstart_train.first_steps.tokens import FIRST_SURENESS


def first_module(target: Model, weights: DecoderWeights, init: Path | None) -> MultiTokenModules:
    """A single module for a target; of several the first, which goes on from its own states.

    Args:
        weights: the target's, float32.
        init: a checkpoint whose module it is; None: the target's own, or a fresh one where that has none.

    Raises:
        ConfigError: ``init`` has no module, or is of another shape than the target.
        CheckpointError: it cannot be read.
    """
    return _known(target, init) or _fresh(target.config, weights)


def require_module(target: Model, init: Path | None) -> None:
    """Refuse what no module can be made of, before any weights are read.

    Raises:
        ConfigError, CheckpointError: as ``first_module``; or its layer cannot be trained, or not be written.
    """
    check_modules_writable(target.config)
    known, config = _known(target, init), target.config
    if known is None:
        place = _place(config)
        config = replace(config, layers=config.layers[place : place + 1])
    require_trainable_module(config if known is None else known.config)


def _known(target: Model, init: Path | None) -> MultiTokenModules | None:
    """The module that there is already, whose matrices stay in the file."""
    checkpoint, config = target.checkpoint, target.config
    if init is not None:
        checkpoint = open_checkpoint(init)
        config = config_of(checkpoint)
        if target_shape(config) != target_shape(target.config):
            raise ConfigError(f"{init} is of another shape than the target; name a module of the same model.")
    found = load_multi_token(checkpoint, config, torch.float32)
    if found is not None:
        return replace(found, config=replace(found.config, layers=found.config.layers[:1]), modules=found.modules[:1])
    if init is not None:
        raise ConfigError(f"{init} has no multi-token module to begin from; name a folder that has one.")
    return None


def _fresh(config: ModelConfig, weights: DecoderWeights) -> MultiTokenModules:
    """The target's last layer of the right kind behind a projection that knows nothing, drawn by torch's generator."""
    names, place = multi_token_layout(config, "hf"), _place(config)
    size, offset = config.hidden_size, config.norms.offset
    flat = NormWeights(torch.full((size,), 1.0 - offset))
    sure = FIRST_SURENESS * (weights.final_norm.weight + offset) - offset
    module = MultiTokenModule(
        embedding_norm=flat,
        hidden_norm=flat,
        final_norm=NormWeights(sure),
        projection=LinearWeights(torch.randn(size, 2 * size) * (2 * size) ** -0.5),
        layer=weights.layers[place],
    )
    return MultiTokenModules(
        replace(config, layers=(config.layers[place],)),
        (module,),
        names.hidden_first,
        feeds_unnormed=names.feeds_unnormed,
    )


def _place(config: ModelConfig) -> int:
    """The last layer that is like a module's."""
    place = multi_token_layout(config, "hf").place(config)
    if place is None:
        raise ConfigError(
            f"{config.name or config.family} has no layer with both parts of a module's; name a module with --init."
        )
    return place
