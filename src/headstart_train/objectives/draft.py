"""Distilling a draft model that begins as some of the target's own layers (Zhou et al. 2023, DistillSpec,
arXiv:2310.08461: the target's law on text that the target wrote).

Its embedding and output head are the target's and stay so; its layers and final norm learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.files import RECORD_KEY
from headstart.drafting.heads.tables import TargetTables
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart_train.choices import LossName
from headstart_train.decoder.trainable import TrainableDecoder, attend_masked
from headstart_train.files.models import check_writable, save_model
from headstart_train.files.tokenizers import save_tokenizer
from headstart_train.objectives.masks import Rows, sees_text
from headstart_train.objectives.objective import Chains, HeldOut, StepLosses, Teacher
from headstart_train.states import Batch, shift

_CHUNK = 1024
"""States whose logits are held at a time where only the best token is asked for."""


class DraftModelObjective:
    """A small decoder that reads what the target reads. Its guess of any depth is that of the true text so far.

    Args:
        config: of the small model.
        weights: float32, what it begins with.
        tables: the target's, on the device where batches come.
        teacher_ids: int64 target ids whose probabilities are learnt.
        checkpoint: the target's, for its tokenizer.
        depth: guesses that are judged on held-out text.

    Raises:
        CheckpointError: a model of this family cannot be written.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        tables: TargetTables,
        teacher_ids: Tensor,
        checkpoint: Checkpoint,
        *,
        loss: LossName = "ce",
        depth: int = 5,
    ) -> None:
        check_writable(config)
        self.depth = depth
        self._config, self._weights, self._checkpoint = config, weights, checkpoint
        on_device = replace(weights, embedding=tables.embedding)
        self.head = TrainableDecoder(config, on_device, device=tables.embedding.device)
        self._teacher = Teacher(tables, teacher_ids, config.head.softcap)
        self._loss = loss

    def loss(self, batch: Batch) -> Tensor:
        # One depth stands for all: the state after a token guesses the next one, whatever draft it would be part of.
        losses = StepLosses(self.head, self._teacher, batch, self._loss, 1.0)
        places = losses.places(0)
        behind = _one_on(self._states(batch))
        return losses.loss(0, places, behind[places], self._teacher.logits)

    @torch.no_grad()
    def held_out(self, batch: Batch) -> HeldOut:
        chains = Chains(self._teacher, batch)
        states = self._states(batch).flatten(0, 1)
        best = [self._teacher.logits(part).argmax(-1) for part in torch.split(states, _CHUNK)]
        guesses = self._teacher.ids[torch.cat(best)].view_as(batch.tokens)
        for depth in range(self.depth):
            chains.judge_tokens(depth, shift(guesses, 1 + depth, -1)[chains.places])
        return chains.result()

    def save(self, directory: Path, record: Mapping[str, Any]) -> None:
        """A model's folder in Hugging Face's form, in bfloat16."""
        layers, final_norm = self.head.layer_weights()
        weights = replace(self._weights, layers=layers, final_norm=final_norm)
        save_model(self._config, weights, directory, dtype=torch.bfloat16, more={RECORD_KEY: dict(record)})
        save_tokenizer(self._checkpoint, directory)

    def _states(self, batch: Batch) -> Tensor:
        """[pack, position, hidden] after the final norm."""
        rows = Rows.of_text(batch)
        sees = {window: sees_text(rows, batch, window) for window in {layer.window for layer in self._config.layers}}

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_masked(q, k, v, sees[self._config.layers[index].window], self._config)

        states: Tensor = self.head(self.head.embed(batch.tokens), batch.positions, attend)
        return states


def _one_on(states: Tensor) -> Tensor:
    """states[:, i + 1] at place i."""
    return torch.cat((states[:, 1:], states[:, -1:]), dim=1)
