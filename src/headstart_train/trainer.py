"""The training loop: warm-up and cosine, clipped gradients, held-out acceptance, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from headstart.errors import ConfigError
from headstart_train.averaging import RunningMean
from headstart_train.checkpoints import CHECKPOINT_FILE, Progress, load_checkpoint, save_checkpoint
from headstart_train.choices import OptimiserName
from headstart_train.distributed import Team
from headstart_train.objectives.objective import HeldOut, Objective, trainable
from headstart_train.optimiser import Optimiser
from headstart_train.states import StateSource
from headstart_train.text.packs import Pack
from headstart_train.time_budget import StepTimes

_TOLERANCE = 0.1
"""Part of all steps by which a reckoning may miss its budget."""
_SOON = 0.25
"""Part of a budget after which a first reckoning waits for no more steps to be timed."""


@dataclass(frozen=True)
class TrainSettings:
    """How a head is trained."""

    epochs: float = 4.0
    steps: int | None = None
    """Optimiser steps; None: as many as ``epochs`` take."""
    batch: int = 16
    """Packs of a step, over all processes."""
    micro_batch: int = 4
    """Packs that are computed together."""
    optimiser: OptimiserName = "adamw"
    lr: float = 1e-3
    warm_up: float = 0.04
    """Share of the steps until the learning rate is reached."""
    final_lr: float = 0.05
    """Share of it that is left at the end."""
    average: float = 0.0
    """About the last share of the steps, over which the head's weights are averaged; 0: the last weights."""
    clip: float = 0.5
    """Largest norm of the gradient."""
    weight_decay: float = 0.0
    evaluate_every: int = 100
    save_every: int = 50
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    """What products are computed in; parameters are float32."""

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch", "evaluate_every", "save_every", "lr", "clip", "epochs"):
            if not getattr(self, name) > 0:  # NaN is refused, too
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be more than 0.")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; it must be 1 or more.")
        for name in ("warm_up", "final_lr", "average"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it is a share, from 0 to 1.")


@dataclass(frozen=True)
class StepReport:
    """One step, for display."""

    progress: Progress
    loss: float


class Trainer:
    """Trains a head and keeps the best one in ``out``, by acceptance: loss keeps falling after acceptance has peaked.

    Everything follows from the settings and the step, so a training that was killed continues bit for bit; with a
    budget, unless the machine has become so much slower or faster that the steps are reckoned anew.

    Args:
        objective: the head and its losses.
        states: the target's.
        packs: to learn from.
        held_out: to measure acceptance on.
        settings: how.
        out: directory of the head and of its checkpoint.
        record: what else to keep about the head (target, data).
        identity: what else must be the same for a checkpoint to be continued, as JSON values.
        minutes: budget, of at most the settings' steps; the learning rate is planned to end with it.
        team: this process among others.
    """

    def __init__(
        self,
        objective: Objective,
        states: StateSource,
        packs: Sequence[Pack],
        held_out: Sequence[Pack],
        settings: TrainSettings,
        out: Path,
        *,
        record: dict[str, Any] | None = None,
        identity: dict[str, Any] | None = None,
        minutes: float | None = None,
        team: Team | None = None,
    ) -> None:
        self._team = team or Team()
        if settings.batch % self._team.size:
            raise ConfigError(f"batch is {settings.batch}; it must be a multiple of the {self._team.size} processes.")
        if not packs:
            raise ConfigError(
                "there is no text to train on: no answer begins within the length of a pack; make it longer."
            )
        self._objective, self._states = objective, states
        self._packs, self._held_out = packs, held_out
        self._settings, self._out = settings, out
        self._record = record or {}
        self._minutes = minutes
        self._parameters = [parameter for _, parameter in trainable(objective.head)]
        self._optimiser = Optimiser(objective.head, settings.optimiser, settings.lr, settings.weight_decay)
        self._mean = RunningMean(objective.head, settings.average)
        per_epoch = max(len(packs) // settings.batch, 1)
        self._most_steps = math.ceil(settings.epochs * per_epoch) if settings.steps is None else settings.steps
        self._identity = {**asdict(settings), **(identity or {}), "packs": len(packs), "processes": self._team.size}
        self.progress = load_checkpoint(
            out / CHECKPOINT_FILE, objective.head, self._optimiser, self._mean, self._identity
        ) or Progress(total_steps=self._most_steps)

    def run(self, on_step: Callable[[StepReport], None] | None = None) -> Progress:
        """Train to the end; the leader calls ``on_step`` after every step."""
        progress, settings = self.progress, self._settings
        keeps = self._states.keeps([*self._packs, *self._held_out])
        times, warm, last_look = StepTimes(), False, 0.0
        recent: list[float] = []
        if progress.step == 0:
            # Before any head is written: a checkpoint marks the directory as this training's.
            self._save_checkpoint()
            began = time.perf_counter()
            self._evaluate()
            measuring = time.perf_counter() - began
            progress.seconds += measuring
            # What held-out text took to be read is spent once, if its states are kept.
            last_look = measuring - (self._states.computing_seconds if keeps else 0)
            times.measuring = last_look / settings.evaluate_every
        while progress.step < progress.total_steps:
            began, computed = time.perf_counter(), self._states.computing_seconds
            recent.append(self._step())
            progress.step += 1
            self._mean.count(progress.step)
            if warm:
                times.add(time.perf_counter() - began, self._states.computing_seconds - computed)
            warm = True
            # Before it is asked whether this step is the last: a reckoning may make it so.
            if self._minutes is not None:
                left = self._minutes * 60 - progress.seconds - (time.perf_counter() - began) - last_look
                if self._team.agree(left) <= 0:
                    progress.total_steps, progress.paced = progress.step, True
                elif self._reckoning_is_due() and (times.known or (times.guessed and self._is_late(left))):
                    unread = max(len(self._packs) // settings.batch - progress.step, 0) if keeps else None
                    self._set_steps(times.fitting(left, unread))
            last = progress.step == progress.total_steps
            if last or progress.step % settings.evaluate_every == 0:
                progress.losses.append((progress.step, sum(recent) / len(recent)))
                recent = []
                self._evaluate()
            progress.seconds += time.perf_counter() - began
            if last or progress.step % settings.save_every == 0:
                # A mean loss must not depend on where a run began.
                if recent:
                    progress.losses.append((progress.step, sum(recent) / len(recent)))
                    recent = []
                self._save()
            if on_step is not None and self._team.leads:
                on_step(StepReport(progress, recent[-1] if recent else progress.losses[-1][1]))
        self._team.wait()
        return progress

    def _step(self) -> float:
        """One optimiser step; its loss, the mean over all processes."""
        settings, progress = self._settings, self.progress
        mine = self._batch(progress.step)[self._team.rank :: self._team.size]
        parts = [mine[first : first + settings.micro_batch] for first in range(0, len(mine), settings.micro_batch)]
        total = 0.0
        for part in parts:
            batch = self._states.batch(part)
            # What an objective draws depends on the step alone, whichever process computes it in however many parts.
            torch.manual_seed(settings.seed + 1_000_003 * progress.step)
            with self._autocast():
                loss = self._objective.loss(batch) * (len(part) / len(mine))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        self._team.average_gradients(self._parameters)
        torch.nn.utils.clip_grad_norm_(self._parameters, settings.clip)
        self._optimiser.step(learning_rate(progress.step, progress.total_steps, settings.warm_up, settings.final_lr))
        mean = self._team.sum(torch.tensor(total / self._team.size, dtype=torch.float64)).item()
        if not math.isfinite(mean):
            raise ConfigError(f"the loss of step {progress.step} is {mean}; choose a smaller lr than {settings.lr}.")
        return mean

    def _batch(self, step: int) -> list[Pack]:
        """The packs of a step: each epoch has its own order, and leaves out what does not fill a batch."""
        size = min(self._settings.batch, len(self._packs))
        per_epoch = max(len(self._packs) // size, 1)
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([self._settings.seed, epoch]).permutation(len(self._packs))
        chosen = [self._packs[index] for index in order[place * size : (place + 1) * size]]
        # A tiny corpus must still give every process its share.
        return (chosen * -(-self._settings.batch // len(chosen)))[: self._settings.batch]

    def _evaluate(self) -> None:
        """Measure acceptance, and write the head if it is the best so far."""
        if not self._held_out:
            return
        depth = self._objective.depth
        counts = HeldOut(0, torch.zeros(depth, dtype=torch.int64), torch.zeros(depth, dtype=torch.int64))
        with self._mean.in_place():
            for pack in self._held_out[self._team.rank :: self._team.size]:
                counts += self._objective.held_out(self._states.batch([pack]))
        flat = self._team.sum(torch.cat((torch.tensor([counts.rows]), counts.right, counts.accepted)))
        whole = HeldOut(int(flat[0]), flat[1 : 1 + depth], flat[1 + depth :])
        self.progress.held_out.append((self.progress.step, whole.accepted_length, whole.accuracy))
        if whole.accepted_length > self.progress.best:
            self.progress.best = whole.accepted_length
            self._write_head()

    def _write_head(self) -> None:
        if self._team.leads:
            progress = self.progress
            known = {**self._record, "step": progress.step, "held_out_accepted_length": progress.best}
            with self._mean.in_place():
                self._objective.save(self._out, known)

    def _reckoning_is_due(self) -> bool:
        """As early as possible, and with every checkpoint: other work may take the machine, or leave it."""
        return not self.progress.paced or self.progress.step % self._settings.save_every == 0

    def _is_late(self, left: float) -> bool:
        """Whether the first reckoning must rest on fewer steps than usual; ``left``: seconds of the budget."""
        assert self._minutes is not None
        late = left < (1 - _SOON) * self._minutes * 60
        return bool(self._team.agree(float(late))) and not self.progress.paced

    def _set_steps(self, fitting: int) -> None:
        """Go on for so many steps, but no more than planned without a budget, and as planned before if that is nearly
        right. The number is part of the checkpoint."""
        progress = self.progress
        fitting, planned = int(self._team.agree(fitting)), progress.total_steps - progress.step
        if not progress.paced or abs(fitting - planned) > _TOLERANCE * progress.total_steps:
            progress.total_steps = max(min(self._most_steps, progress.step + fitting), progress.step)
        progress.paced = True

    def _save(self) -> None:
        if not self._held_out:
            self._write_head()
        self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        if self._team.leads:
            path = self._out / CHECKPOINT_FILE
            save_checkpoint(path, self._objective.head, self._optimiser, self._mean, self.progress, self._identity)
        self._team.wait()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._settings.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._parameters[0].device.type, torch.bfloat16)


def learning_rate(step: int, total: int, warm_up: float, final: float) -> float:
    """Share of the full rate: a linear rise, then half a cosine down to ``final``."""
    rising = max(round(warm_up * total), 1)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(total - rising, 1)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
