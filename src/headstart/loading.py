"""From a model's name to something that decodes: checkpoint, configuration, backend, tokenizer, chat template."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import torch

from headstart.errors import ConfigError
from headstart.models.backend import Backend
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.torch_backend import TorchBackend
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer


class Precision(StrEnum):
    """What a model is computed in."""

    AUTO = "auto"
    """float32."""
    FP32 = "fp32"
    BF16 = "bf16"


_DTYPES = {Precision.AUTO: torch.float32, Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True)
class Model:
    """A loaded model."""

    name: str
    checkpoint: Checkpoint
    config: ModelConfig
    weights: DecoderWeights = field(repr=False)
    backend: Backend = field(repr=False)
    tokenizer: Tokenizer
    chat_template: ChatTemplate

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What ends a sequence, by the model's configuration or its tokenizer."""
        return tuple(dict.fromkeys((*self.config.eos_token_ids, *self.tokenizer.eos_token_ids)))


def load_model(name: str | Path, precision: Precision | str = Precision.AUTO, revision: str | None = None) -> Model:
    """Load a model by alias, directory, hub id or .gguf file.

    Raises:
        CheckpointError: the model is missing, damaged, or of an unknown family.
        ConfigError: the precision is unknown.
    """
    dtype = _DTYPES[parse_precision(precision)]
    checkpoint = open_checkpoint(name, revision)
    config, weights = load_decoder(checkpoint, dtype)
    return Model(
        name=str(name),
        checkpoint=checkpoint,
        config=config,
        weights=weights,
        backend=TorchBackend(config, weights, dtype),
        tokenizer=Tokenizer.from_checkpoint(checkpoint),
        chat_template=ChatTemplate.from_checkpoint(checkpoint),
    )


def parse_precision(precision: Precision | str) -> Precision:
    """A precision by its name.

    Raises:
        ConfigError: there is no such precision.
    """
    try:
        return Precision(precision)
    except ValueError:
        choices = ", ".join(Precision)
        raise ConfigError(f"precision is {precision!r}; choose one of {choices}.") from None
