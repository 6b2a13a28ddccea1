"""From a target's name to a trained head: text, draft vocabulary, head, training, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.backends.torch.device import parse_device
from headstart.common.enumerations import Precision
from headstart.common.memory import free_bytes
from headstart.drafting.heads.files import CONFIG_FILE
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import ConfigError
from headstart.loading.lending import identity_of
from headstart.loading.model import load_model
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import FINAL_TAP
from headstart_train.budget import Budget, Costs, try_steps, write_fitting
from headstart_train.checkpoints import CHECKPOINT_FILE, Progress
from headstart_train.computed_states import ComputedStates
from headstart_train.decoder.trainable import is_trainable
from headstart_train.distributed import join_team
from headstart_train.making import (
    HeadName,
    HeadSettings,
    begins_by_itself,
    make_objective,
    require_trainable,
    require_used,
    says_all,
    slots_of,
    trunk_of,
)
from headstart_train.memory import keep_freed
from headstart_train.objectives.objective import Objective
from headstart_train.progressing import Progressing
from headstart_train.report import write_report
from headstart_train.states import StateSource, TargetStates
from headstart_train.text.gathering import Writers
from headstart_train.text.packs import Pack
from headstart_train.text.text import TextSettings, TextSource
from headstart_train.trainer import StepReport, Trainer, TrainSettings
from headstart_train.vocabulary import choose_draft_vocabulary
from headstart_train.warm_start import begin_from, load_known

_STEPS_A_PASS = 8
"""Fewer teach little, however large they are."""


@dataclass(frozen=True)
class TrainedHead:
    """What a training came to."""

    directory: Path
    progress: Progress
    coverage: float
    """Share of the target's tokens that the head can say."""
    record: dict[str, Any] = field(default_factory=dict)
    leads: bool = True
    """Whether this process speaks for all that trained."""
    corpus: Path | None = None
    """Where its text is."""
    minutes: float = 0.0
    """Spent on everything, over all runs."""
    enough_minutes: float | None = None
    """About how long a training on enough text takes on this machine; None: unknown."""


def train_head(
    name: HeadName,
    model: str | Path,
    out: Path,
    *,
    text: TextSettings | None = None,
    head: HeadSettings | None = None,
    settings: TrainSettings | None = None,
    length: int = 512,
    minutes: float | None = None,
    fit_batch: bool = False,
    cache_gb: float = 4.0,
    device: str | None = None,
    precision: Precision | str = Precision.AUTO,
    writers: Writers | None = None,
    on_progress: Progressing | None = None,
) -> TrainedHead:
    """Train a head for a target; called again after a kill, it goes on where it was.

    Args:
        length: tokens of a pack.
        minutes: budget of everything, the writing of the text and all runs after a kill counted in; the text is as
            long as can be read ``settings.epochs`` times within it.
        fit_batch: make the batch smaller where there is little text.
        cache_gb: memory, and files beside the text, for the target's states, which are computed anew beyond it; at
            most half of the memory that is free.
        device: "cpu" or "cuda"; None: a GPU where there is one.
        precision: of the target, as it will be served: a head learns its very states.
        writers: engines elsewhere that write the text; None: it is written here.

    Raises:
        HeadstartError: see the message.
    """
    budget = Budget(minutes, out)
    text, head = text or TextSettings(), head or HeadSettings()
    wishes, told = settings or TrainSettings(), on_progress or Progressing()
    require_used(name, head)
    name, head = trunk_of(name, head)
    _require_own(out)
    place = _place(device)
    keep_freed()
    with _products(place, wishes.precision), join_team(place) as team:
        if minutes is not None:
            told.left(budget.left)
        told.begin(f"Loading {model}", None)
        target = load_model(model, precision, device=place)
        # What cannot be trained is refused before hours of text are written.
        require_trainable(name, head, target)
        known = None if head.init is None or begins_by_itself(name) else load_known(head.init, target.config, name)
        source = TextSource(
            model, target, text, out, wishes.seed, team.leads, told, precision=precision, writers=writers
        )
        _, weights = load_decoder(target.checkpoint, torch.float32)
        tables = TargetTables(weights.embedding.to(place), weights.head.weight.to(place))
        all_tokens = head.draft_vocab == 0 or (head.draft_vocab is None and says_all(name))
        wanted = target.config.vocab_size if all_tokens else head.draft_vocab
        # What a head can say already it goes on saying.
        required = target.eos_token_ids if known is None else (*target.eos_token_ids, *known.target_ids.tolist())

        def make(counts: NDArray[np.int64]) -> tuple[Objective, float]:
            ids, coverage = choose_draft_vocabulary(counts, wanted, required)
            torch.manual_seed(wishes.seed)
            objective = make_objective(name, target, weights, ids, head, tables, known)
            if known is not None:
                begin_from(objective.head, known)
            return objective, coverage

        def states_of(objective: Objective, cache_bytes: int, directories: list[Path]) -> StateSource:
            taps = objective.head.config.taps if isinstance(objective.head, EagleHead | BlockHead) else (FINAL_TAP,)
            if place.type != "cpu" and is_trainable(target.config):
                return ComputedStates(target.config, weights, tables.head, taps, place)
            return TargetStates(target.backend, tables.head, taps, cache_bytes, place, directories)

        def try_() -> tuple[float, float, float] | None:
            """What learning takes, on the text that there is."""
            sample = source.text()
            packs, _ = sample.packs(length)
            if not packs:
                return None
            objective, _ = make(sample.counts(target.config.vocab_size))
            return try_steps(objective, states_of(objective, 0, []), packs, wishes)

        if team.leads:
            costs: Costs | None = None
            # With a budget, a training that has begun goes on with the text that it began with.
            begun = (out / CHECKPOINT_FILE).exists()
            if not begun or (minutes is None and source.missing):
                costs = write_fitting(source, budget, wishes, length, try_, told)
            source.end()
            budget.end_text(costs, source.corpus.num_answer_tokens)
        team.wait()
        texts = source.text()
        objective, coverage = make(texts.counts(target.config.vocab_size))
        packs, held_out = texts.packs(length)
        settings = replace(wishes, batch=_fitting_batch(wishes, packs, team.size)) if fit_batch else wishes
        what = {"head": name, "target_digest": target.checkpoint.digest()}
        own, *earlier = texts.about()
        chosen = {
            **asdict(head),
            "slots": slots_of(name, head, known),
            "init": None if head.init is None else head.init.name,
            "length": length,
        }
        record = {
            **what,
            **identity_of(target).record(),
            "target": str(model),
            "target_precision": target.backend.name,
            "text": own,
            "earlier_text": earlier,
            "coverage": coverage,
            "settings": {**asdict(settings), **chosen},
        }
        directories = [directory / f"states-{target.backend.name}-{place.type}" for directory in texts.directories]
        left = budget.left
        trainer = Trainer(
            objective,
            states_of(objective, _states_bytes(cache_gb), directories),
            packs,
            held_out,
            settings,
            out,
            record=record,
            identity={**what, **chosen},
            minutes=None if minutes is None else team.agree(left) / 60,
            team=team,
        )
        told.begin(f"Training {name}", None)
        progress = trainer.run(_counting_down(told, trainer, None if minutes is None else left))
        if team.leads:
            write_report(out, record, progress)
    spent = (budget.seconds + progress.seconds) / 60
    enough = budget.enough_minutes(settings.epochs)
    return TrainedHead(out, progress, coverage, record, team.leads, texts.directories[0], spent, enough)


def _counting_down(told: Progressing, trainer: Trainer, budget: float | None) -> Callable[[StepReport], None]:
    """Tells of each step, and how much time is left: of the budget, or by the pace of this run's steps."""
    began, first = time.perf_counter(), trainer.progress.step

    def on_step(report: StepReport) -> None:
        progress = report.progress
        remaining = progress.total_steps - progress.step
        left = (time.perf_counter() - began) / max(progress.step - first, 1) * remaining
        told.left(left if budget is None else min(left, max(budget - progress.seconds, 0.0)))
        told.trained(report)

    return on_step


def _fitting_batch(settings: TrainSettings, packs: list[Pack], processes: int) -> int:
    """Packs of a step, as the settings say or fewer, lest a pass over little text be a step or two."""
    fitting = max(min(settings.batch, len(packs) // _STEPS_A_PASS), 1)
    return -(-fitting // processes) * processes


def _require_own(out: Path) -> None:
    """Refuse to write over a model or head that was not trained here.

    Raises:
        ConfigError: ``out`` holds one.
    """
    if (out / CONFIG_FILE).exists() and not (out / CHECKPOINT_FILE).exists():
        raise ConfigError(f"{out} holds a model or head that no training there has written; name another directory.")


def _place(device: str | None) -> torch.device:
    """Where a head is trained.

    Raises:
        ConfigError: there is no such place.
    """
    found = "cuda" if torch.cuda.is_available() else "cpu"
    kind = (device or found).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}; give cpu or cuda.")
    if kind == "cuda" and found != "cuda":
        raise ConfigError(f"device is {device!r}, but PyTorch finds no GPU here; give cpu.")
    if device in (None, "cuda") and found == "cuda" and "LOCAL_RANK" in os.environ:
        # Of several processes each has a GPU of its own (``torchrun``).
        return parse_device(f"cuda:{os.environ['LOCAL_RANK']}")
    return parse_device(device or found)


@contextmanager
def _products(place: torch.device, precision: str) -> Iterator[None]:
    """Inside, what autocast leaves in float32 on CUDA need not be more exact than three passes of bf16 would be.

    Only inside: the process may serve in float32 afterwards.
    """
    before = torch.get_float32_matmul_precision()
    if place.type == "cuda" and precision == "bf16":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _states_bytes(wanted_gb: float) -> int:
    """For the target's states: what is left must do for the training itself."""
    wanted, free = int(wanted_gb * 2**30), free_bytes()
    return wanted if free is None else min(wanted, free // 2)
