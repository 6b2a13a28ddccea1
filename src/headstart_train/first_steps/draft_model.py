"""Draft models at their first step: some of the target's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headstart.errors import ConfigError
from headstart.loading.model import Model
from headstart.models.layer_selection import require_layers, select_layers, spread_layers
from headstart_train.files.models import check_writable
from headstart_train.making import HeadSettings, Start
from headstart_train.objectives.draft import DraftModelObjective


def require_trainable(target: Model, settings: HeadSettings) -> None:
    """Refuse a draft model that cannot be made of this target.

    Raises:
        ConfigError, CheckpointError: why.
    """
    check_writable(target.config)
    _first_layers(settings.layers, target.config.num_layers)


def make(start: Start) -> DraftModelObjective:
    """A draft model at its first step."""
    config, settings = start.target.config, start.settings
    with_ends = replace(config, eos_token_ids=start.target.eos_token_ids)
    small, its_weights = select_layers(with_ends, start.weights, _first_layers(settings.layers, config.num_layers))
    return DraftModelObjective(small, its_weights, start.tables, start.ids, start.target.checkpoint, loss=settings.loss)


def _first_layers(wanted: int | tuple[int, ...] | None, available: int) -> list[int]:
    """The target's layers that a draft model begins as."""
    first_two_and_last = sorted({0, min(1, available - 1), available - 1})
    return choose_layers(first_two_and_last if wanted is None else wanted, available)


def choose_layers(wanted: int | Sequence[int], available: int) -> list[int]:
    """Layers as ``wanted`` lists them, or that many, evenly spread.

    Raises:
        ConfigError: none are wanted, too many, or one that the model does not have.
    """
    if not isinstance(wanted, int):
        require_layers(wanted, available)
        return list(wanted)
    if not 1 <= wanted <= available:
        raise ConfigError(f"layers is {wanted}; this model has {available}, so give 1 to {available}.")
    return spread_layers(wanted, available)
