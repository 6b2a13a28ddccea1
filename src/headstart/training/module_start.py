"""What a multi-token module begins as: the target's own, one that was trained before, or a copy of the target's last
layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from headstart.errors import ConfigError
from headstart.heads.shipped import target_shape
from headstart.loading import Model
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.families.multi_token import multi_token_layout
from headstart.models.multi_token import MultiTokenModule, MultiTokenModules, load_multi_token
from headstart.models.weight_loading import config_of
from headstart.models.weights import DecoderWeights, LinearWeights, NormWeights

MODULE_KIND = "mtp"
_FIRST_SURENESS = 0.1
"""Of a fresh module: what knows nothing yet must not be sure of it (docs/experiments/0005)."""


def first_module(target: Model, weights: DecoderWeights, init: Path | None) -> MultiTokenModules:
    """A single module for a target; of several the first, which goes on from its own states.

    Args:
        weights: the target's, float32.
        init: a checkpoint whose module it is; None: the target's own, or a fresh one where that has none.

    Raises:
        ConfigError: ``init`` has no module, or is of another shape than the target.
        CheckpointError: it cannot be read.
    """
    checkpoint, config = target.checkpoint, target.config
    if init is not None:
        checkpoint = open_checkpoint(init)
        config = config_of(checkpoint)
        if target_shape(config) != target_shape(target.config):
            raise ConfigError(f"{init} is of another shape than the target; name a module of the same model.")
    found = load_multi_token(checkpoint, config, torch.float32)
    if found is not None:
        return MultiTokenModules(
            replace(found.config, layers=found.config.layers[:1]), found.modules[:1], found.hidden_first
        )
    if init is not None:
        raise ConfigError(f"{init} has no multi-token module to begin from; name a folder that has one.")
    return _fresh(config, weights)


def _fresh(config: ModelConfig, weights: DecoderWeights) -> MultiTokenModules:
    """The target's last layer of the right kind behind a projection that knows nothing, drawn by torch's generator."""
    names = multi_token_layout(config, "hf")
    assert names is not None
    like = names.like(config)
    place = max(place for place, layer in enumerate(config.layers) if layer == like)
    size, offset = config.hidden_size, config.norm_offset
    flat = NormWeights(torch.full((size,), 1.0 - offset))
    sure = _FIRST_SURENESS * (weights.final_norm.weight + offset) - offset
    module = MultiTokenModule(
        embedding_norm=flat,
        hidden_norm=flat,
        final_norm=NormWeights(sure),
        projection=LinearWeights(torch.randn(size, 2 * size) * (2 * size) ** -0.5),
        layer=weights.layers[place],
    )
    return MultiTokenModules(replace(config, layers=(like,)), (module,), names.hidden_first)
