"""The state of a training on disk, whole at any moment: to go on after a kill as if there had been none."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headstart.errors import CheckpointError
from headstart_train.averaging import RunningMean
from headstart_train.optimiser import Optimiser

CHECKPOINT_FILE = "checkpoint.safetensors"


@dataclass
class Progress:
    """How far a training has come."""

    step: int = 0
    """Optimiser steps done."""
    total_steps: int = 0
    """Steps that the learning rate is planned for."""
    paced: bool = False
    """Whether they were fitted to a budget of minutes. They still change if the pace does."""
    seconds: float = 0.0
    """Spent, over all runs."""
    best: float = 0.0
    """Accepted length on held-out text of the head that was written last."""
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(step, mean loss since the one before)."""
    held_out: list[tuple[int, float, list[float]]] = field(default_factory=list)
    """(step, accepted length, accuracy by depth)."""

    @property
    def first_guesses(self) -> float | None:
        """Part of the best head's first guesses on held-out text that were the target's favourite; None: none was held
        out."""
        if not self.held_out:
            return None
        _, _, accuracy = max(self.held_out, key=lambda each: each[1])
        return accuracy[0]


def save_checkpoint(
    path: Path,
    head: nn.Module,
    optimiser: Optimiser,
    mean: RunningMean,
    progress: Progress,
    settings: dict[str, Any],
) -> None:
    """Replace the checkpoint in one step: a kill leaves the old one or the new one."""
    tensors = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    tensors |= {f"optimiser.{name}": tensor for name, tensor in optimiser.state().items()}
    tensors |= {f"mean.{name}": tensor for name, tensor in mean.state().items()}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    record = {"progress": asdict(progress), "settings": settings}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file(contiguous, unfinished, metadata={"record": json.dumps(record)})
    os.replace(unfinished, path)


def load_checkpoint(
    path: Path, head: nn.Module, optimiser: Optimiser, mean: RunningMean, settings: dict[str, Any]
) -> Progress | None:
    """Go on from a checkpoint; None where there is none.

    Raises:
        CheckpointError: it is damaged, or of a training with other settings.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads(file.metadata()["record"])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to begin anew.") from error
    recorded = record["settings"]
    wanted = json.loads(json.dumps(settings))
    # An older checkpoint may record less.
    changed = sorted(key for key, value in wanted.items() if recorded.get(key, value) != value)
    if changed:
        raise CheckpointError(
            f"{path} belongs to a training with another {', '.join(changed)}; give the same, or another --out."
        )
    kept = _part("head.", tensors)
    for name, tensor in head.state_dict().items():
        if name not in kept or kept[name].shape != tensor.shape:
            raise CheckpointError(
                f"{path} belongs to a training of another head ({name} is of another shape); give the same options, "
                "or another --out."
            )
    head.load_state_dict(kept)
    optimiser.load_state(_part("optimiser.", tensors))
    mean.load_state(_part("mean.", tensors) or kept)
    return _progress(record["progress"])


def _part(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _progress(record: dict[str, Any]) -> Progress:
    progress = Progress(**record)
    progress.losses = [(step, loss) for step, loss in progress.losses]
    progress.held_out = [(step, length, accuracy) for step, length, accuracy in progress.held_out]
    return progress
