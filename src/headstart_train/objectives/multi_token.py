"""Training a multi-token module (DeepSeek-V3, arXiv:2412.19437, section 2.2) as it drafts: the first step reads the
target's states, each further one what the module made of the token before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.files import RECORD_KEY
from headstart.drafting.heads.tables import TargetTables
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.multi_token_modules import MultiTokenModules
from headstart.models.weights import DecoderWeights
from headstart_train.choices import LossName
from headstart_train.decoder.rotary_table import RotaryTable
from headstart_train.decoder.trainable_module import TrainableModule
from headstart_train.files.models import check_modules_writable, save_modules
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.objectives.unrolled import Unrolled
from headstart_train.states import Batch


class MultiTokenObjective:
    """One module, unrolled on its own states.

    Args:
        config, weights, checkpoint: the target's.
        modules: what it begins as, a single one.
        tables: the target's, on the device where batches come.
        teacher_ids: int64 target ids whose probabilities are learnt.
        steps: unrolled steps.
        decay: weight of a step relative to the one before.
        depth: steps that are judged on held-out text.

    Raises:
        CheckpointError, ConfigError: a module of this family cannot be written or learnt.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        checkpoint: Checkpoint,
        modules: MultiTokenModules,
        tables: TargetTables,
        teacher_ids: Tensor,
        *,
        loss: LossName = "ce",
        steps: int = 4,
        decay: float = 0.8,
        depth: int = 5,
    ) -> None:
        check_modules_writable(config)
        device = tables.head.device
        self.head, self.depth = TrainableModule(modules, device), depth
        self._config, self._weights, self._checkpoint = config, weights, checkpoint
        self._teacher = Teacher(tables, teacher_ids, config.head.softcap)
        self._embedding = tables.embedding * config.embedding.scale
        self._loss, self._steps, self._decay = loss, steps, decay
        rope = modules.config.layers[0].rope
        self._rotary = RotaryTable(config.ropes[rope or 0], torch.float32, device, weights.rope_factors)

    def loss(self, batch: Batch) -> Tensor:
        losses = StepLosses(self.head, self._teacher, batch, self._loss, self._decay)
        unrolled = Unrolled(self.head, self._embedding, self._rotary, batch)
        total = torch.zeros((), device=batch.tokens.device)
        for step in range(self._steps):
            output, places = unrolled.step(), losses.places(step)
            total = total + losses.loss(step, places, output[places[unrolled.places]], self._teacher.logits)
        return total

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        chains = Chains(self._teacher, batch)
        unrolled = Unrolled(self.head, self._embedding, self._rotary, batch)
        for step in range(self.depth):
            chains.judge(step, self._teacher.logits(unrolled.step()))
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        """A folder that ``mtp`` reads as draft model, in bfloat16: the module alone, with the target's description."""
        description = self._checkpoint.metadata if self._checkpoint.kind == "hf" else None
        save_modules(
            self._config,
            self._weights,
            [self.head.weights],
            directory,
            description=description,
            dtype=torch.bfloat16,
            more={RECORD_KEY: dict(record)},
        )
