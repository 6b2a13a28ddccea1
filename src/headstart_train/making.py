"""What can be trained, and each kind of it at its first step.

Each kind is a row of the registry of methods (``drafting/method.py``): what it uses, its defaults, and who makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.drafting.heads.formats import SpeakingHead
from headstart.drafting.heads.modules import MOST_LAYERS
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.method import Trained
from headstart.drafting.registry import trained_kinds
from headstart.errors import ConfigError, meant
from headstart.loading.model import Model
from headstart.models.weights import DecoderWeights
from headstart_train.choices import LossName
from headstart_train.objectives.objective import Objective

HeadName = str
"""One of ``HEAD_NAMES``."""
HEAD_NAMES: tuple[HeadName, ...] = tuple(trained_kinds())
_LEAST_WINDOW = 16
"""More than a draft is deep, so that its rows see each other."""


@dataclass(frozen=True)
class HeadSettings:
    """The head, and what it is taught."""

    draft_vocab: int | None = None
    """Tokens it can say (modules, draft models and look-ahead embeddings say all, and learn of these); None: enough for
    97 % of what the target says, or all for those three; 0: all."""
    slots: int | None = None
    """Future tokens (P-EAGLE, DFlash, Medusa, blockwise, PaSS); None: as many as the head that is begun from, or four,
    eight for P-EAGLE, nine for DFlash."""
    unroll: int | None = None
    """Steps that EAGLE heads and multi-token modules are unrolled for, and the most that P-EAGLE's masks stand behind;
    None: 4 for EAGLE-3 and modules, 1 for the others."""
    decay: float | None = None
    """Weight of a depth relative to the one above it; None: 0.8, for DFlash by the length of its blocks."""
    dropout: float | None = None
    """Share of what EAGLE heads read that is zeroed while they learn, lest they learn the text by heart; None: 0."""
    loss: LossName = "ce"
    layers: int | tuple[int, ...] | None = None
    """The target's layers that a draft model begins as: these, or so many, evenly spread; None: the first two and the
    last. Of an EAGLE head or a block head: how many it has; None: as many as the head that is begun from, or one, three
    for a block head."""
    window: int | None = None
    """Positions that an EAGLE-3 or P-EAGLE head's rows see, their own included; 0: all; None: as the head that is begun
    from, or all."""
    init: Path | None = None
    """Directory of a head to begin from (EAGLE, DFlash, Medusa, blockwise, a multi-token module); P-EAGLE also begins
    from EAGLE-3. A multi-token module without one begins from the target's own, where that has one."""
    residual_blocks: int | None = None
    """Of each of Medusa's slots, one after the other; None: as many as the head that is begun from, or four."""
    reads_token: bool | None = None
    """Medusa's slots read the token that the target has just said, beside its state; None: they do."""
    causal: bool | None = None
    """The rows of DFlash's blocks see those before them only; None: as the head that is begun from, or both ways."""
    markov_rank: int | None = None
    """Of what the token before a guess of DFlash adds to its logits; None: as the head that is begun from, or 0."""
    confidence: bool | None = None
    """A DFlash head learns how likely its guesses are accepted, too; None: as the head that is begun from, or no."""
    root_speaks: bool | None = None
    """The last token's row of a block guesses, too; None: as the head that is begun from, or no."""
    spacing: int | None = None
    """Tokens of the text from one block of DFlash that is learnt to the next; None: as many as a block has rows."""


@dataclass(frozen=True)
class Start:
    """What the first step of a training is made of."""

    kind: Trained
    target: Model
    weights: DecoderWeights
    """The target's, float32."""
    tables: TargetTables
    """Where the training computes."""
    ids: Tensor
    """Tokens that it can say, int64 beside the tables."""
    settings: HeadSettings
    known: SpeakingHead | None
    """The head that it begins from."""

    @property
    def slots(self) -> int:
        """Future tokens that are guessed at once."""
        return slots_of(self.kind.name, self.settings, self.known)

    @property
    def unroll(self) -> int:
        """Steps that it is unrolled for."""
        return self.kind.unroll if self.settings.unroll is None else self.settings.unroll

    @property
    def decay(self) -> float:
        """Weight of a depth relative to the one above it."""
        return 0.8 if self.settings.decay is None else self.settings.decay


def trunk_of(name: HeadName, head: HeadSettings) -> tuple[HeadName, HeadSettings]:
    """The kind of head that is trained under a name, and its settings: kin of a method are heads of its trunk."""
    kind = trained_kinds().get(name)
    if kind is None or not kind.trunk:
        return name, head
    # The blocks of one that begins from another are as long as those.
    kept = {"slots"} if head.init is not None else set()
    told = {setting: value for setting, value in kind.defaults.items() if setting not in kept}
    unset: dict[str, Any] = {
        each.name: told[each.name] for each in fields(head) if each.name in told and getattr(head, each.name) is None
    }
    return kind.trunk, replace(head, **unset)


def says_all(name: HeadName) -> bool:
    """Whether it says all of the target's tokens, and learns of all unless told otherwise."""
    return trained_kinds()[name].whole_vocabulary


def begins_by_itself(name: HeadName) -> bool:
    """Whether its maker reads what it begins from, in place of ``load_known``."""
    return trained_kinds()[name].own_start


def require_used(name: HeadName, head: HeadSettings) -> None:
    """Refuse settings that this kind of head does not use.

    Raises:
        ConfigError: which, or there is no such kind.
    """
    if (kind := trained_kinds().get(name)) is None:
        raise ConfigError(f"there is no head {name!r} to train; {meant(name, HEAD_NAMES)}")
    for setting in (each.name for each in fields(head)):
        users = [other.name for other in trained_kinds().values() if setting in other.settings]
        if users and name not in users and getattr(head, setting) is not None:
            raise ConfigError(f"{setting} is a setting of {', '.join(users)}; leave it out for {name}.")
    if head.loss == "dpace" and not kind.in_blocks:
        raise ConfigError(f"the loss dpace weighs the guesses of a block; for {name} choose ce, tv or lk.")
    if head.window and head.window < _LEAST_WINDOW:
        raise ConfigError(f"window is {head.window}; give {_LEAST_WINDOW} positions or more, or 0 for all.")
    if head.spacing is not None and head.spacing < 1:
        raise ConfigError(f"spacing is {head.spacing}; give a number of tokens, 1 or more.")
    if kind.layers_of_target or head.layers is None:
        return
    if isinstance(head.layers, tuple):
        raise ConfigError(f"layers is {head.layers}, but {name} has layers of its own; give their number.")
    if not 1 <= head.layers <= MOST_LAYERS:
        raise ConfigError(f"layers is {head.layers}; give a number from 1 to {MOST_LAYERS}.")


def require_trainable(name: HeadName, head: HeadSettings, target: Model) -> None:
    """Refuse what cannot be made of this target.

    Raises:
        ConfigError, CheckpointError: why.
    """
    if place := trained_kinds()[name].check:
        _at(place)(target, head)


def make_objective(
    name: HeadName,
    target: Model,
    weights: DecoderWeights,
    ids: Tensor,
    settings: HeadSettings,
    tables: TargetTables,
    known: SpeakingHead | None,
) -> Objective:
    """What is trained, at its first step. ``ids``: tokens that the head can say."""
    kind = trained_kinds()[name]
    ids = ids.to(tables.head.device)
    made: Objective = _at(kind.maker)(Start(kind, target, weights, tables, ids, settings, known))
    return made


def slots_of(name: HeadName, settings: HeadSettings, known: SpeakingHead | None) -> int:
    """Future tokens that are guessed at once."""
    if settings.slots is not None:
        return settings.slots
    if known is not None and known.config.slots:
        return known.config.slots
    return trained_kinds()[name].slots


def _at(place: str) -> Callable[..., Any]:
    """What stands at ``module:function``."""
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
