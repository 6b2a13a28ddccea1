"""Multi-token modules at their first step."""

from __future__ import annotations

from headstart.loading.model import Model
from headstart_train.making import HeadSettings, Start
from headstart_train.module_start import first_module, require_module
from headstart_train.objectives.multi_token import MultiTokenObjective


def require_trainable(target: Model, settings: HeadSettings) -> None:
    """Refuse a module that cannot be made of this target.

    Raises:
        ConfigError, CheckpointError: why.
    """
    require_module(target, settings.init)


def make(start: Start) -> MultiTokenObjective:
    """A module at its first step."""
    target, weights, settings = start.target, start.weights, start.settings
    return MultiTokenObjective(
        target.config,
        weights,
        target.checkpoint,
        first_module(target, weights, settings.init),
        start.tables,
        start.ids,
        loss=settings.loss,
        steps=start.unroll,
        decay=start.decay,
    )
